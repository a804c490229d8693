// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
)

func fingerprint(t *testing.T, operation string, payload any) string {
	t.Helper()
	f, err := idempotency.Fingerprint(operation, payload)
	if err != nil {
		t.Fatalf("fingerprint of %.200s: %v", payload, err)
	}
	if len(f) != 33 || f[0] != 1 {
		t.Fatalf("fingerprint %x", f)
	}
	return hex.EncodeToString(f)
}

func raw(text string) json.RawMessage { return json.RawMessage(text) }

type payment struct {
	To    string  `json:"to"`
	Cents int64   `json:"cents"`
	Note  *string `json:"note,omitempty"`
}

// TestFingerprint_golden: stored requests are compared with version 1 for years.
func TestFingerprint_golden(t *testing.T) {
	for _, c := range []struct {
		payload any
		want    string
	}{
		{nil, "01b9ff86512a5f06d6723f9778257c73aba4fb12004c657f5f8347bb86d1e15d92"},
		{payment{To: "Zoë\n\"<&>\\", Cents: 9007199254740993}, "01f2a341feafd0bcca7420a663dfa6064eac1ab6676f0b5f1d437e6f7d065ab497"},
		{raw(`{"b":[1,2.50,-0,1e3,true,null,{}],"a":"\ud83d\ude00\u001f/\/"}`), "01e2fd09d12d64e9becc38b335527e18417020425f7bd9463c1502d2a6a0d05d8c"},
		{[]byte("{}"), "010256e8babc5ead2598015f6ba1160d450f0521fc515780be565b55e737c11ebe"},
		{raw("{}"), "01bc52d99796c87614052203e2f31de3b74653ce9d84b6ffa1fc9554889c619c02"},
	} {
		if got := fingerprint(t, "pay", c.payload); got != c.want {
			t.Errorf("of %v: %s, want %s", c.payload, got, c.want)
		}
	}
}

func TestFingerprint_equal(t *testing.T) {
	smile := "\U0001F600"
	for _, c := range [][]any{
		{raw("1"), raw("1.0"), raw("1e0"), raw("10e-1"), raw("0.1E+1"), raw(" 1\n"), 1, 1.0, uint8(1), json.Number("100e-2")},
		{raw("0"), raw("-0"), raw("-0.0e5"), raw("0e99999999999999999999999999"), 0, math.Copysign(0, -1)},
		{raw("1e999999999"), raw("10e999999998"), raw("0.01e1000000001")},
		{raw("-120"), raw("-1.2e2"), raw("-12E1"), raw("-120.000")},
		{raw(`{"to":"x","cents":5}`), raw(` { "cents" : 5.0, "to" : "\u0078" } `), payment{To: "x", Cents: 5}, &payment{To: "x", Cents: 5}, map[string]any{"cents": 5, "to": "x"}},
		{raw(`"` + smile + `"`), raw(`"\ud83d\ude00"`), raw(`"\uD83D\uDE00"`), smile},
		{raw("\"\uFFFD\""), raw(`"\ufffd"`), "\uFFFD"},
		{raw(`"a\/b\u003c"`), "a/b<"},
		{nil, raw("null"), (*payment)(nil), map[string]int(nil)},
	} {
		first := fingerprint(t, "op", c[0])
		for _, other := range c[1:] {
			if fingerprint(t, "op", other) != first {
				t.Errorf("%v (%T) differs from %v", other, other, c[0])
			}
		}
	}
}

func TestFingerprint_different(t *testing.T) {
	all := map[string]any{}
	for _, payload := range []any{
		nil, 0, 1, -1, 10, 0.1, "1", "", "null", false, true,
		[]int{},
		[]int{1, 2},
		[]int{2, 1},
		[][]int{{1}, {2}},
		[][]int{{1, 2}, {}},
		map[string]any{},
		raw("9007199254740992"), raw("9007199254740993"), raw("1e999999999"), raw("1e999999998"), raw("-1e999999999"),
		raw("0.1000000000000000055511151231257827"), raw("1e-400"), raw("2e-400"),
		payment{To: "x"},
		raw(`{"to":"x","cents":0,"note":null}`), raw(`{"to":"x","Cents":0}`), raw(`{"to":null,"cents":0}`),
		raw(`{"a":{"b":1}}`), raw(`{"a":{},"b":1}`), raw(`{"a":"b\":1"}`), raw(`{"a":["b",1]}`),
		"é", "e\u0301", "E", "e", "e ", "\x00", `\u0000`, "\uFFFD",
		[]byte("1"), []byte("null"), []byte(nil), []byte(`""`), []byte("\xff"), []byte("\xfe"), []byte("{}"),
	} {
		f := fingerprint(t, "op", payload)
		if other, same := all[f]; same {
			t.Errorf("%#v (%T) is the same as %#v (%T)", payload, payload, other, other)
		}
		all[f] = payload
	}
	if fingerprint(t, "a", []byte("bc")) == fingerprint(t, "ab", []byte("c")) || fingerprint(t, "a", []byte("jb")) == fingerprint(t, "aj", []byte("b")) {
		t.Error("the operation runs into the payload")
	}
}

type cycle struct{ Next *cycle }

type stubborn struct{}

func (stubborn) MarshalJSON() ([]byte, error) { return nil, errors.New("not now") }

type rawInside struct {
	R json.RawMessage `json:"r"`
}

func TestFingerprint_refused(t *testing.T) {
	ring := &cycle{}
	ring.Next = ring
	loop := map[string]any{}
	loop["loop"] = loop
	var chain *cycle
	for range 3_000_000 { // json.Marshal itself would overflow the stack, which nobody survives
		chain = &cycle{chain}
	}
	deep := strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)
	for name, payload := range map[string]any{
		"NaN": math.NaN(), "Inf": math.Inf(1), "channel": make(chan int), "func": func() {}, "complex": 1i,
		"NaN inside": map[string]any{"a": []any{math.NaN()}},
		"ring":       ring, "loop": loop, "chain": chain, "deep": raw(deep), "deeper": raw(strings.Repeat("[", 5_000_000)), "marshaler": stubborn{},
		"twice": raw(`{"a":1,"b":2,"a":1}`), "twice escaped": raw(`[{"a":1,"\u0061":1}]`), "twice inside": rawInside{raw(`{"a":1,"a":2}`)},
		"trailing": raw(`{} {}`), "trailing comma": raw(`[1,]`), "trailing brace": raw(`1}`), "empty": raw(""), "nil": json.RawMessage(nil), "blank": raw(" "),
		"not UTF-8 raw": raw("\"\xff\""), "not UTF-8 inside": rawInside{raw("\"\xff\"")}, "not UTF-8": "a\xffb", "not UTF-8 field": payment{To: "\xc3"}, "not UTF-8 key": map[string]int{"\xff": 1},
		"high alone": raw(`"\ud83d"`), "low alone": raw(`"\ude00"`), "two high": raw(`"\ud83d\ud83d"`), "high and text": raw(`"\ud83dxxxxxx"`), "high before another": raw(`"\ud83d\n\ude00"`), "in a name": raw(`{"\ud83d":1}`),
		"exponent": raw("1e9999999999999999999"), "leading zero": raw("01"), "plus": raw("+1"), "number": json.Number("1x"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := idempotency.Fingerprint("op", payload)
			if !errors.Is(err, idempotency.ErrUnencodablePayload) || f != nil {
				t.Errorf("%x, %v", f, err)
			}
			if err != nil && !strings.Contains(err.Error(), `"op"`) {
				t.Errorf("it does not say where: %v", err)
			}
		})
	}
	if _, err := idempotency.Fingerprint("", 1); !errors.Is(err, idempotency.ErrOption) {
		t.Errorf("no operation: %v", err)
	}
}

// TestFingerprint_linear: what a client may send costs no more than its size.
func TestFingerprint_linear(t *testing.T) {
	nested := strings.Repeat(`{"a":`, 9_000) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", 9_000)
	digits := "1" + strings.Repeat("0", 1<<20)
	for _, text := range []string{nested, digits, digits + "e-" + fmt.Sprint(1<<20), "1e999999999"} {
		begin := time.Now()
		fingerprint(t, "op", raw(text))
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("%d bytes took %v", len(text), d)
		}
	}
	if n := testing.AllocsPerRun(1, func() { fingerprint(t, "op", raw("1e999999999")) }); n > 100 {
		t.Errorf("%v allocations", n)
	}
	if fingerprint(t, "op", raw(digits+"e-"+fmt.Sprint(1<<20))) != fingerprint(t, "op", 1) {
		t.Error("a long one differs from 1")
	}
}

// document is a random JSON value that can be written in many ways.
type document struct {
	kind   int // 0 string, 1 number, 2 array, 3 object
	text   string
	number int64
	names  []string
	inner  []*document
}

func newDocument(r *rand.Rand, level int) *document {
	d := &document{kind: r.IntN(4)}
	if level == 0 {
		d.kind = 3
	} else if level > 4 {
		d.kind = r.IntN(2)
	}
	switch d.kind {
	case 0:
		letters := []rune("aZ\"\\/<\n\x01é\u2028\U0001F600\uFFFD")
		for range r.IntN(6) {
			d.text += string(letters[r.IntN(len(letters))])
		}
	case 1:
		d.number = r.Int64() >> r.IntN(64)
		if r.IntN(2) == 0 {
			d.number = -d.number
		}
	default:
		for i := range 1 + r.IntN(4) {
			d.names = append(d.names, fmt.Sprintf("%c%d", 'a'+r.IntN(26), i))
			d.inner = append(d.inner, newDocument(r, level+1))
		}
	}
	return d
}

// leaves are what a document says.
func (d *document) leaves() []*document {
	if d.kind < 2 {
		return []*document{d}
	}
	var all []*document
	for _, i := range d.inner {
		all = append(all, i.leaves()...)
	}
	return all
}

// write says it in one of the ways there are.
func (d *document) write(b *strings.Builder, r *rand.Rand) {
	space := func() { b.WriteString([]string{"", "", " ", "\n\t"}[r.IntN(4)]) }
	space()
	defer space()
	switch d.kind {
	case 0:
		writeString(b, r, d.text)
	case 1:
		switch r.IntN(4) {
		case 0:
			fmt.Fprintf(b, "%d", d.number)
		case 1:
			fmt.Fprintf(b, "%d.%s", d.number, strings.Repeat("0", 1+r.IntN(3)))
		case 2:
			n := r.IntN(5) * btoi(d.number != 0)
			fmt.Fprintf(b, "%d%sE-%02d", d.number, strings.Repeat("0", n), n)
		default:
			s := fmt.Sprint(d.number)
			fmt.Fprintf(b, "%s.%se+1", s[:len(s)-1]+strings.Repeat("0", btoi(len(strings.TrimLeft(s, "-")) == 1)), s[len(s)-1:])
		}
	case 2:
		b.WriteString("[")
		for i, inner := range d.inner {
			if i > 0 {
				b.WriteString(",")
			}
			inner.write(b, r)
		}
		b.WriteString("]")
	case 3:
		b.WriteString("{")
		for i, at := range r.Perm(len(d.inner)) {
			if i > 0 {
				b.WriteString(",")
			}
			writeString(b, r, d.names[at])
			b.WriteString(":")
			d.inner[at].write(b, r)
		}
		b.WriteString("}")
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func writeString(b *strings.Builder, r *rand.Rand, s string) {
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c > 0xFFFF && r.IntN(2) == 0:
			c -= 0x10000
			fmt.Fprintf(b, `\u%04X\u%04x`, 0xD800+c>>10, 0xDC00+c&0x3FF)
		case c < 0x20 || c == '"' || c == '\\' || c <= 0xFFFF && r.IntN(3) == 0:
			fmt.Fprintf(b, `\u%04x`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
}

// FuzzFingerprint: how a document is written never matters, and what it says always
// does.
func FuzzFingerprint(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed+1)
	}
	f.Fuzz(func(t *testing.T, seed, way uint64) {
		r, w := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(way, 2))
		d := newDocument(r, 0)
		written := func() string {
			var b strings.Builder
			d.write(&b, w)
			return b.String()
		}
		first, again := written(), written()
		was := fingerprint(t, "op", raw(first))
		if fingerprint(t, "op", raw(again)) != was {
			t.Fatalf("these differ:\n%s\n%s", first, again)
		}
		var value any
		decoder := json.NewDecoder(strings.NewReader(first))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		if fingerprint(t, "op", value) != was {
			t.Fatalf("as a Go value it differs: %s", first)
		}
		leaves := d.leaves()
		leaf := leaves[r.IntN(len(leaves))]
		before := *leaf
		for _, change := range []func(){
			func() { leaf.text += "x"; leaf.number ^= 1 },
			func() { leaf.kind = 1 - leaf.kind },
		} {
			change()
			if changed := written(); fingerprint(t, "op", raw(changed)) == was {
				t.Fatalf("these are the same:\n%s\n%s", first, changed)
			}
			*leaf = before
		}
	})
}

// FuzzFingerprint_text: no text panics, and what is taken is taken as it is meant.
func FuzzFingerprint_text(f *testing.F) {
	for _, seed := range []string{`{"a":[1.50e+7,"\ud83d\ude00"]}`, `"\u`, `"\ud83d\`, "-", "1e", "[", `{"a"`, "\"\\u12\xff4\"", "-0.00e-0", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := idempotency.Fingerprint("op", json.RawMessage(text))
		if err != nil {
			if !errors.Is(err, idempotency.ErrUnencodablePayload) {
				t.Fatal(err)
			}
			return
		}
		var value any
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			t.Fatalf("taken, and is none: %v", err)
		}
		if again, err := idempotency.Fingerprint("op", value); err != nil || !bytes.Equal(got, again) {
			t.Fatalf("as a Go value it differs: %v", err)
		}
	})
}

// TestOnce_otherBody: a key that comes again with another body is found out, and with
// the same in other words it is not.
func TestOnce_otherBody(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		ask := func(operation, body string) (idempotency.Result, error) {
			f, err := idempotency.Fingerprint(operation, raw(body))
			if err != nil {
				t.Fatal(err)
			}
			return g.Once(t.Context(), nil, idempotency.Request{Key: "one", Fingerprint: f}, sale)
		}
		if _, err := ask("sell", `{"sku":1,"n":1}`); err != nil {
			t.Fatal(err)
		}
		if r, err := ask("sell", `{ "n":1.0, "sku":1 }`); err != nil || !r.Replayed {
			t.Errorf("the same in other words: replayed %v, %v", r.Replayed, err)
		}
		for _, other := range [][2]string{{"sell", `{"sku":1,"n":2}`}, {"sell", `{"sku":1}`}, {"sell", `{"sku":1,"n":null}`}, {"return", `{"sku":1,"n":1}`}} {
			if r, err := ask(other[0], other[1]); !errors.Is(err, idempotency.ErrMismatch) || r.Body != nil {
				t.Errorf("%v: %q, %v", other, r.Body, err)
			}
		}
		s.stock(t, 9)
	})
}
