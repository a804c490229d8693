// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/tierlock/tierlock/idempotency"
)

// ended runs f on a goroutine of its own, which a panic or Goexit may end, and returns
// what it panicked with when it has.
func ended(f func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
	}()
	<-done
	return panicked
}

// stored checks all that is stored: of requests, in the order of their keys.
func (s *shop) stored(t *testing.T, when string, want ...string) {
	t.Helper()
	rows, err := s.Admin.QueryContext(t.Context(), `SELECT CONCAT_WS('|', request_key, state, attempts, CAST(recovery_point AS CHAR), IF(attempt IS NULL, 'nobody', 'somebody'),
		IF(in_progress_until IS NULL, 'for ever', 'for a time'), IF(completed_at IS NULL, 'open', 'ended'), COALESCE(CAST(result AS CHAR), 'nothing')) FROM idempotency ORDER BY request_key`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var row string
		if err := rows.Scan(&row); err != nil {
			t.Fatal(err)
		}
		got = append(got, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("%s: stored are %q, want %q", when, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: stored is %q, want %q", when, got[i], want[i])
		}
	}
}

var errEarly = errors.New("not today")

// early are the ways in which a write may end early.
var early = map[string]struct {
	end  func(cancel context.CancelFunc) ([]byte, error)
	want error // nil: it does not return
	kept bool  // it is the answer
}{
	"panic":                {end: func(context.CancelFunc) ([]byte, error) { panic(errEarly) }},
	"Goexit":               {end: func(context.CancelFunc) ([]byte, error) { runtime.Goexit(); return nil, nil }},
	"context ends, nil":    {end: func(cancel context.CancelFunc) ([]byte, error) { cancel(); return []byte("done"), nil }, want: context.Canceled},
	"context ends, error":  {end: func(cancel context.CancelFunc) ([]byte, error) { cancel(); return nil, context.Canceled }, want: context.Canceled},
	"error":                {end: func(context.CancelFunc) ([]byte, error) { return nil, errEarly }, want: errEarly},
	"error with an answer": {end: func(context.CancelFunc) ([]byte, error) { return []byte("half"), errEarly }, want: errEarly},
	"too large":            {end: func(context.CancelFunc) ([]byte, error) { return make([]byte, 1<<20+1), nil }, want: idempotency.ErrResultTooLarge},
	"final":                {end: func(context.CancelFunc) ([]byte, error) { return nil, idempotency.Final([]byte("no"), errEarly) }, want: idempotency.ErrFinal, kept: true},
	"final, too large": {end: func(context.CancelFunc) ([]byte, error) {
		return nil, idempotency.Final(make([]byte, 1<<20+1), errEarly)
	}, want: idempotency.ErrResultTooLarge},
	"final, nothing to say": {end: func(context.CancelFunc) ([]byte, error) { return nil, idempotency.Final(nil, nil) }, want: idempotency.ErrFinal, kept: true},
}

// TestOnce_endsEarly has writes that do not come to their end: what they wrote is not
// there, what is stored is exact, and pool, session and tenure are as before.
func TestOnce_endsEarly(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.db.SetMaxOpenConns(1)
		for name, test := range early {
			t.Run(name, func(t *testing.T) {
				before := s.session(t)
				lease := s.acquire(t, s.locker)
				for _, within := range []string{"Once", "OnceTx"} {
					returned := false
					panicked := ended(func() {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						write := func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
							if _, err := sale(ctx, tx); err != nil {
								return nil, err
							}
							return test.end(cancel)
						}
						var result idempotency.Result
						var err error
						if within == "Once" {
							result, err = g.Once(ctx, lease, buy("order"), write)
						} else {
							tx, begun := s.db.BeginTx(t.Context(), nil)
							if begun != nil {
								t.Error(begun)
								return
							}
							defer tx.Rollback()
							result, err = g.OnceTx(ctx, tx, lease, buy("order"), func(ctx context.Context) ([]byte, error) { return write(ctx, tx) })
							if commit := tx.Commit(); !errors.Is(commit, sql.ErrTxDone) {
								t.Errorf("OnceTx: commit after %v: %v, want ErrTxDone", err, commit)
							}
						}
						returned = true
						want := test.want
						if within == "OnceTx" && strings.HasPrefix(name, "final") {
							want = idempotency.ErrFinal // stored by nobody
						}
						if want == nil || !errors.Is(err, want) || result.Replayed {
							t.Errorf("%s: %v, want %v", within, err, want)
						}
					})
					if returned != (test.want != nil) || (panicked != nil) != (name == "panic") {
						t.Errorf("%s: returned: %v, panicked with %v", within, returned, panicked)
					}
					idle(t, s.db)
					s.stock(t, 10)
					if test.kept && within == "Once" {
						body := map[bool]string{true: "", false: "no"}[name == "final, nothing to say"]
						s.stored(t, within, "order|3|1||somebody|for ever|ended|"+body)
						result, err := g.Once(t.Context(), lease, buy("order"), neverWrite(t))
						if !errors.Is(err, idempotency.ErrFinal) || errors.Is(err, errEarly) || string(result.Body) != body || !result.Replayed {
							t.Errorf("%s again: %q, replayed %v: %v", within, result.Body, result.Replayed, err)
						}
						s.Exec(t, "DELETE FROM idempotency")
					} else {
						s.stored(t, within)
					}
				}
				if after := s.session(t); after != before {
					t.Errorf("the session is %q, was %q", after, before)
				}
				// Nothing is in the way of the next, and nothing keeps the tenure.
				if result, err := g.Once(t.Context(), lease, buy("order"), sale); err != nil || result.Replayed {
					t.Errorf("again: replayed %v, %v", result.Replayed, err)
				}
				s.stored(t, "again", "order|2|1||somebody|for ever|ended|left: 9")
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
				idle(t, s.db)
				s.restock(t, 10)
				s.Exec(t, "DELETE FROM idempotency")
			})
		}
	})
}

// session is what a guard might leave changed on the pool's one connection.
func (s *shop) session(t *testing.T) (what string) {
	t.Helper()
	isolation := "@@transaction_isolation"
	if s.Count(t, "SELECT VERSION() LIKE '%MariaDB%'") == 1 {
		isolation = "@@tx_isolation"
	}
	err := s.db.QueryRowContext(t.Context(), "SELECT CONCAT_WS(' ', @@innodb_lock_wait_timeout, @@autocommit, @@time_zone, @@sql_mode, "+isolation+")").Scan(&what)
	if err != nil {
		t.Fatal(err)
	}
	return what
}

// TestReserve_endsEarly has steps that do not come to their end: the next call goes on
// at once from the recovery point that was reached.
func TestReserve_endsEarly(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.db.SetMaxOpenConns(1)
		for name, test := range early {
			t.Run(name, func(t *testing.T) {
				before := s.session(t)
				lease := s.acquire(t, s.locker)
				for _, in := range []string{"call", "save"} {
					p := &provider{}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					steps := purchase(p)
					last := steps[1]
					if in == "call" {
						steps[1].Call = func(context.Context, idempotency.Call) ([]byte, error) { return test.end(cancel) }
					} else {
						steps[1].Save = func(ctx context.Context, tx *sql.Tx, _ idempotency.Call, _ []byte) ([]byte, error) {
							if _, err := sale(ctx, tx); err != nil {
								return nil, err
							}
							return test.end(cancel)
						}
					}
					returned := false
					panicked := ended(func() {
						_, err := g.Reserve(ctx, lease, buy("order"), steps...)
						returned = true
						if test.want == nil || !errors.Is(err, test.want) {
							t.Errorf("%s: %v, want %v", in, err, test.want)
						}
					})
					if returned != (test.want != nil) || (panicked != nil) != (name == "panic") {
						t.Errorf("%s: returned: %v, panicked with %v", in, returned, panicked)
					}
					idle(t, s.db)
					s.stock(t, 9)
					steps[1] = last
					if test.kept {
						body := map[bool]string{true: "", false: "no"}[name == "final, nothing to say"]
						s.stored(t, in, "order|3|1|charged|somebody|for ever|ended|"+body)
						if result, err := g.Reserve(t.Context(), lease, buy("order"), steps...); !errors.Is(err, idempotency.ErrFinal) || !result.Replayed {
							t.Errorf("%s again: replayed %v, %v", in, result.Replayed, err)
						}
					} else {
						s.stored(t, in, "order|1|1|charged|nobody|for ever|open|receipt")
						result, err := g.Reserve(t.Context(), lease, buy("order"), steps...)
						if err != nil || string(result.Body) != "mailed receipt" || result.Replayed {
							t.Errorf("%s again: %q, replayed %v: %v", in, result.Body, result.Replayed, err)
						}
						s.stored(t, in+" again", "order|2|2|charged|somebody|for ever|ended|mailed receipt")
					}
					if p.calls != 1 {
						t.Errorf("%s: %d calls for one charge", in, p.calls)
					}
					s.stock(t, 9)
					s.restock(t, 10)
					s.Exec(t, "DELETE FROM idempotency")
				}
				if after := s.session(t); after != before {
					t.Errorf("the session is %q, was %q", after, before)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
			})
		}
	})
}
