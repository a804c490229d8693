// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestFilter_Mark(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	for _, flag := range []bool{false, true} {
		key := fmt.Sprintf("k%v", flag)
		m := newMark()
		m.Flagged = flag
		plant(t, f, key, m)
		if v := s.value(t, key); len(v) != 33 || v[1:] != m.Token.String() {
			t.Errorf("value %q", v)
		}
		if left := s.pttl(t, key); left <= ttl/2 || left > ttl {
			t.Errorf("PTTL %v", left)
		}
		st, err := f.Mark(t.Context(), key, newMark())
		if err != nil {
			t.Fatal(err)
		}
		wantForeign(t, st, m)
		// A request sent twice recognises itself (K1).
		plant(t, f, key, m)
	}
}

func TestFilter_Extend(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	m := newMark()

	st, err := f.Extend(t.Context(), "k", m)
	if err != nil || st != (driver.MarkState{}) {
		t.Fatalf("no mark: %+v, %v", st, err)
	}
	if keys := s.keys(t); len(keys) > 0 {
		t.Fatalf("Extend planted %v", keys)
	}

	plant(t, f, "k", flagged(m))
	longer := m
	longer.TTL = 10 * ttl
	if st, err = f.Extend(t.Context(), "k", longer); err != nil || !st.Ours {
		t.Fatalf("own mark: %+v, %v", st, err)
	}
	if left := s.pttl(t, "k"); left <= 5*ttl {
		t.Errorf("PTTL %v after Extend", left)
	}
	if s.value(t, "k")[0] != '!' {
		t.Error("Extend took the flag away")
	}
	if st, err = f.Extend(t.Context(), "k", newMark()); err != nil {
		t.Fatal(err)
	}
	wantForeign(t, st, flagged(longer))
}

func TestFilter_Overwrite(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	ours := newMark()
	over := func(want bool) driver.MarkState {
		t.Helper()
		st, err := f.Overwrite(t.Context(), "k", ours)
		if err != nil || st.Ours != want {
			t.Fatalf("Overwrite: %+v, %v", st, err)
		}
		if got := strings.HasSuffix(s.value(t, "k"), ours.Token.String()); got != want {
			t.Fatalf("value %q after Overwrite answered %v", s.value(t, "k"), want)
		}
		return st
	}
	over(true) // where none stands
	over(true) // our own

	if err := f.Clear(t.Context(), "k", ours.Token, false); err != nil {
		t.Fatal(err)
	}
	plant(t, f, "k", newMark())
	over(true) // a plain one

	if err := f.Clear(t.Context(), "k", ours.Token, false); err != nil {
		t.Fatal(err)
	}
	other := flagged(newMark())
	plant(t, f, "k", other)
	wantForeign(t, over(false), other)

	// A stranger's string that merely begins like a flagged mark protects nothing.
	for _, junk := range []string{"!", "!" + strings.Repeat("z", 32), "!" + ours.Token.String() + "0", ""} {
		s.client.Set(t.Context(), s.markKey("k"), junk, 0)
		over(true)
	}
}

func TestFilter_Refresh(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	own, absent, beaten, other := newMark(), flagged(newMark()), newMark(), newMark()
	plant(t, f, "own", own)
	plant(t, f, "beaten", other)
	own.TTL *= 10

	// More than one pipeline holds, the interesting ones at both ends.
	marks := []driver.KeyMark{{Key: "own", Mark: own}}
	for i := range 1200 {
		marks = append(marks, driver.KeyMark{Key: fmt.Sprint("n", i), Mark: newMark()})
	}
	marks = append(marks, driver.KeyMark{Key: "absent", Mark: absent}, driver.KeyMark{Key: "beaten", Mark: beaten})
	states, err := f.Refresh(t.Context(), marks)
	if err != nil || len(states) != len(marks) {
		t.Fatalf("%d states, %v", len(states), err)
	}
	for i, st := range states[:len(states)-1] {
		if !st.Ours {
			t.Fatalf("%s: %+v", marks[i].Key, st)
		}
	}
	wantForeign(t, states[len(states)-1], other)
	if left := s.pttl(t, "own"); left <= 5*ttl {
		t.Errorf("own: PTTL %v", left)
	}
	if v := s.value(t, "absent"); v != "!"+absent.Token.String() {
		t.Errorf("absent: value %q", v)
	}
	if states, err = f.Refresh(t.Context(), nil); err != nil || len(states) != 0 {
		t.Errorf("nothing to refresh: %v, %v", states, err)
	}
}

func TestFilter_Clear(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	m := newMark()
	plant(t, f, "k", m)
	if err := f.Clear(t.Context(), "k", driver.NewToken(), true); err != nil {
		t.Fatal(err)
	}
	if s.value(t, "k") == "" {
		t.Fatal("a foreign token cleared the mark")
	}
	for range 2 { // the second finds nothing, which is no error
		if err := f.Clear(t.Context(), "k", m.Token, false); err != nil {
			t.Fatal(err)
		}
	}
	if keys := s.keys(t); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
}

// The scripts are gone before every call: they are sent again (K2).
func TestFilter_scriptFlush_K2(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t) // the flush would disturb others
	s := serverAt(t, srv.URL())
	f := s.open(t)
	m := newMark()
	flush := func() { s.client.ScriptFlush(context.Background()) }
	for range 3 {
		flush()
		plant(t, f, "k", m)
		flush()
		if st, err := f.Extend(t.Context(), "k", m); err != nil || !st.Ours {
			t.Fatalf("Extend: %+v, %v", st, err)
		}
		flush()
		if st, err := f.Overwrite(t.Context(), "k", m); err != nil || !st.Ours {
			t.Fatalf("Overwrite: %+v, %v", st, err)
		}
		flush()
		states, err := f.Refresh(t.Context(), []driver.KeyMark{{Key: "k", Mark: m}, {Key: "k2", Mark: m}})
		if err != nil || !states[0].Ours || !states[1].Ours {
			t.Fatalf("Refresh: %+v, %v", states, err)
		}
		for _, key := range []string{"k", "k2"} {
			flush()
			if err := f.Clear(t.Context(), key, m.Token, true); err != nil {
				t.Fatal(err)
			}
		}
		if keys := s.keys(t); len(keys) > 0 {
			t.Fatalf("left: %v", keys)
		}
	}
}

// No time a caller gives depends on its own clock: the value and the command
// hold a duration (D7).
func TestFilter_relativeTime_D7(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	p := stack.StartProxy(t, srv)
	var sent []string
	seen := make(chan string, 100)
	p.OnRequest(func(r stack.Request) stack.Action {
		seen <- strings.ToUpper(r.Text)
		return stack.Pass
	})
	f := openAt(t, p.URL(), "p:")
	m := newMark()
	plant(t, f, "k", m)
	if _, err := f.Overwrite(t.Context(), "k", m); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Refresh(t.Context(), []driver.KeyMark{{Key: "k", Mark: m}}); err != nil {
		t.Fatal(err)
	}
	for len(seen) > 0 {
		sent = append(sent, <-seen)
	}
	all := strings.Join(sent, "\n")
	if !strings.Contains(all, fmt.Sprint(ttl.Milliseconds())) {
		t.Errorf("no duration of %v in what was sent:\n%s", ttl, all)
	}
	for _, absolute := range []string{"PXAT", "EXAT", "PEXPIREAT", fmt.Sprint(time.Now().Unix())[:6]} {
		if strings.Contains(all, absolute) {
			t.Errorf("%s was sent:\n%s", absolute, all)
		}
	}
}

// Nothing passes for our token but the token: not a part of it, not more than
// it, not another case or type (C10).
func TestFilter_wholeToken_C10(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	for i := range 200 {
		m := newMark()
		hex := m.Token.String()
		one := []byte(hex)
		at := i % len(one)
		one[at] = "0123456789abcdef"[(strings.IndexByte("0123456789abcdef", one[at])+1)%16]
		for _, foreign := range []string{
			"", ".", "!", hex, "." + hex[:at], "." + hex + "0", "." + hex + hex, ".." + hex, " ." + hex,
			"." + hex[at+1:], "." + string(one), "!" + string(one), "." + strings.Repeat("0", 32), "." + hex + "\x00",
		} {
			s.client.Set(t.Context(), s.markKey("k"), foreign, ttl)
			st, err := f.Mark(t.Context(), "k", m)
			if err != nil || st.Ours || st.Other.IsZero() || st.Other == m.Token || st.Left <= 0 {
				t.Fatalf("Mark over %q: %+v, %v", foreign, st, err)
			}
			if st, err = f.Extend(t.Context(), "k", m); err != nil || st.Ours || st.Other.IsZero() {
				t.Fatalf("Extend of %q: %+v, %v", foreign, st, err)
			}
			if err := f.Clear(t.Context(), "k", m.Token, false); err != nil {
				t.Fatal(err)
			}
			if v, err := s.client.Get(t.Context(), s.markKey("k")).Result(); err != nil || v != foreign {
				t.Fatalf("%q became %q, %v", foreign, v, err)
			}
		}
	}
}

// A stranger's value is a plain mark, the same at every look, and one without a
// time to live does not invite callers to ask at once.
func TestFilter_strangersValue(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	s.client.Set(t.Context(), s.markKey("k"), "somebody else's", 0)
	var first driver.MarkState
	for i := range 3 {
		st, err := f.Mark(t.Context(), "k", newMark())
		if err != nil || st.Ours || st.Flagged || st.Other.IsZero() || st.Left != 24*time.Hour {
			t.Fatalf("%+v, %v", st, err)
		}
		if i == 0 {
			first = st
		}
		if st.Other != first.Other {
			t.Fatalf("the same value was %v and %v", first.Other, st.Other)
		}
	}
}
