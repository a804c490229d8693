// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

func TestNew_badInput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		option tier.Option
		text   string // what the message must name
	}{
		"ttl 0":              {tier.WithTTL(0), "0s"},
		"ttl negative":       {tier.WithTTL(-5 * time.Second), "-5s"},
		"ttl too short":      {tier.WithTTL(499 * time.Millisecond), "499ms"},
		"ttl too long":       {tier.WithTTL(24*time.Hour + time.Nanosecond), "24h0m0.000000001s"},
		"wait negative":      {tier.WithWait(-time.Nanosecond), "-1ns"},
		"drain negative":     {tier.WithDrain(-time.Second), "-1s"},
		"namespace empty":    {tier.WithNamespace(""), `""`},
		"namespace too long": {tier.WithNamespace(strings.Repeat("n", 64)), "64 bytes"},
		"namespace letters":  {tier.WithNamespace("Shop"), `"Shop"`},
		"namespace slash":    {tier.WithNamespace("a/b"), `"a/b"`},
		"namespace newline":  {tier.WithNamespace("shop\n"), `"shop\n"`},
		"holder empty":       {tier.WithHolder(""), "holder is empty"},
		"holder too long":    {tier.WithHolder(strings.Repeat("h", 129)), "129 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := tier.New(tiertest.NewFilter(), tiertest.NewAuthority(), c.option)
			if !errors.Is(err, tier.ErrOption) || l != nil {
				t.Fatalf("New: %v, %v; want nil, ErrOption", l, err)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q does not name %q", err, c.text)
			}
		})
	}
}

func TestNew_nilDrivers(t *testing.T) {
	t.Parallel()
	if l, err := tier.New(tiertest.NewFilter(), nil); !errors.Is(err, tier.ErrOption) || l != nil {
		t.Errorf("nil authority: %v, %v; want ErrOption", l, err)
	}
	authority := tiertest.NewAuthority()
	l, err := tier.New(nil, authority)
	if err != nil {
		t.Fatalf("nil filter: %v", err)
	}
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if lease.Level() != tier.LevelAuthority {
		t.Errorf("level %s without a filter, want authority", lease.Level())
	}
	if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("second: %v, want ErrHeld", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if authority.Held() != 0 {
		t.Error("held after release")
	}
}

func TestAcquire_badInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		key    string
		option tier.AcquireOption
		want   error
		text   string
	}{
		"empty key":       {"", tier.WithWait(0), tier.ErrKey, "empty"},
		"256 bytes":       {strings.Repeat("k", 256), tier.WithWait(0), tier.ErrKey, "256 bytes"},
		"64 KiB":          {strings.Repeat("k", 1<<16), tier.WithWait(0), tier.ErrKey, "65536 bytes"},
		"ttl too short":   {"k", tier.WithTTL(499 * time.Millisecond), tier.ErrOption, "499ms"},
		"ttl sub-ms":      {"k", tier.WithTTL(time.Microsecond), tier.ErrOption, "1µs"},
		"ttl too long":    {"k", tier.WithTTL(25 * time.Hour), tier.ErrOption, "25h"},
		"ttl negative":    {"k", tier.WithTTL(-1), tier.ErrOption, "-1ns"},
		"wait negative":   {"k", tier.WithWait(-time.Second), tier.ErrOption, "-1s"},
		"holder empty":    {"k", tier.WithHolder(""), tier.ErrOption, "holder is empty"},
		"holder too long": {"k", tier.WithHolder(strings.Repeat("h", 129)), tier.ErrOption, "129 bytes"},
	} {
		lease, err := r.Acquire(t.Context(), c.key, c.option)
		if !errors.Is(err, c.want) || lease != nil {
			t.Errorf("%s: %v, %v; want %v", name, lease, err, c.want)
			continue
		}
		if !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %q does not name %q", name, err, c.text)
		}
		var typed *tier.Error
		if !errors.As(err, &typed) || typed.Op != "acquire" || typed.Key != c.key {
			t.Errorf("%s: %#v is no *tier.Error of this acquire", name, err)
		}
		if len(err.Error()) > 500 {
			t.Errorf("%s: an error text of %d bytes", name, len(err.Error()))
		}
	}
	if n := r.calls.total(); n != 0 {
		t.Errorf("%d calls went to the drivers for bad input", n)
	}
}

// TestAcquire_bounds takes the outermost good values (J11, K10).
func TestAcquire_bounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, tier.WithHolder(strings.Repeat("h", 128)))
	for _, ttl := range []time.Duration{500 * time.Millisecond, 24 * time.Hour} {
		lease := r.must(t, strings.Repeat("k", 255), tier.WithTTL(ttl))
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestAcquire_distinctKeys holds keys that a collation would merge (J10).
func TestAcquire_distinctKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := []string{"a", "A", "á", "a\u0301", "a ", " a", "a\t", "a\x00", "straße", "strasse", "\xff\xfe", "a{b}", "}{"}
	for _, key := range keys {
		lease, err := r.TryAcquire(t.Context(), key)
		if err != nil {
			t.Errorf("%q is not independent: %v", key, err)
			continue
		}
		defer func() {
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	if n := r.authority.Held(); n != len(keys) {
		t.Errorf("%d rows held, want %d", n, len(keys))
	}
}
