// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

func TestTally_plus(t *testing.T) {
	t.Parallel()
	// Every counter set, so that one that plus forgets is seen.
	var one tally
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.CanInt() {
			f.SetInt(int64(i + 1))
		}
	}
	one.Levels = levels{1, 2, 3, 4}
	sum := one.plus(one)
	v = reflect.ValueOf(sum)
	for i := range v.NumField() {
		if f := v.Field(i); f.CanInt() && f.Int() != int64(2*(i+1)) {
			t.Errorf("%s is not added", v.Type().Field(i).Name)
		}
	}
	if sum.Levels != (levels{2, 4, 6, 8}) {
		t.Errorf("levels %+v", sum.Levels)
	}
	if got := (tally{Trouble: "first"}).plus(tally{Trouble: "second"}).Trouble; got != "first" {
		t.Errorf("trouble %q", got)
	}
}

func TestLedger_report(t *testing.T) {
	t.Parallel()
	var l ledger
	l.count(func(t *tally) { t.Sold++ })
	l.enter(tenure{Product: 3})
	l.trouble(errors.New("first"))
	l.trouble(errors.New("second"))
	want := report{Kind: saysProgress, Tally: tally{Sold: 1, Trouble: "first"}, Tenures: []tenure{{Product: 3}}}
	if got := l.report(saysProgress); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := l.report(saysProgress); got.Tenures != nil || got.Tally.Sold != 1 {
		t.Errorf("totals stay and tenures go: %+v", got)
	}
}

// refusing is a lock that grants nothing.
type refusing struct{ err error }

func (r refusing) acquire(context.Context, string) (turn, error) { return nil, r.err }
func (refusing) rung() string                                    { return "" }

func (r refusing) acquireAll(context.Context, []string) ([]turn, error) { return nil, r.err }

func (refusing) close(context.Context) error { return nil }

func TestWorker_refused(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want tally
	}{
		{"held", t.Context(), fmt.Errorf("x: %w", errHeld), tally{Attempts: 1, Held: 1}},
		{"held at the end", ended, errHeld, tally{Attempts: 1, Held: 1}},
		{"unavailable", t.Context(), fmt.Errorf("x: %w", errUnavailable), tally{Attempts: 1, Unavailable: 1}},
		{"cancelled", ended, fmt.Errorf("x: %w", context.Canceled), tally{Attempts: 1, Cancelled: 1}},
		{"cancelled by itself", t.Context(), context.Canceled, tally{Attempts: 1, Unavailable: 1, Trouble: "context canceled"}},
		{"odd", t.Context(), errors.New("odd"), tally{Attempts: 1, Unavailable: 1, Trouble: "odd"}},
	} {
		w := &worker{locks: refusing{c.err}, ledger: &ledger{}, rng: rand.New(rand.NewPCG(1, 1))}
		w.turn(c.ctx, 0)
		if got := w.ledger.report("").Tally; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
