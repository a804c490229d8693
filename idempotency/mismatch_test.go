// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
)

// TestMismatch_everyPath_M2 comes again with another request under the same key, to
// whatever the first one has left there.
func TestMismatch_everyPath_M2(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t, idempotency.WithAttemptTime(time.Second), idempotency.WithForbidReuse())
		failure := errors.New("provider is down")
		inStep := make(chan struct{})
		leaveStep := make(chan struct{})
		failing := idempotency.Step{Name: "charged", Call: func(context.Context, idempotency.Call) ([]byte, error) { return nil, failure }}
		last := idempotency.Step{Name: "mailed", Call: func(context.Context, idempotency.Call) ([]byte, error) { return nil, nil }}
		for name, first := range map[string]func(r idempotency.Request) error{
			"completed": func(r idempotency.Request) error {
				_, err := g.Once(t.Context(), nil, r, sale)
				return err
			},
			"failed for good": func(r idempotency.Request) error {
				_, err := g.Once(t.Context(), nil, r, func(context.Context, *sql.Tx) ([]byte, error) {
					return nil, idempotency.Final([]byte("no"), failure)
				})
				if !errors.Is(err, idempotency.ErrFinal) || !errors.Is(err, failure) {
					return err
				}
				return nil
			},
			"under way": func(r idempotency.Request) error {
				go func() {
					_, _ = g.Reserve(context.Background(), nil, r, idempotency.Step{Name: "charged", Call: func(context.Context, idempotency.Call) ([]byte, error) {
						close(inStep)
						<-leaveStep
						return nil, failure
					}}, last)
				}()
				<-inStep
				return nil
			},
			"left by its attempt": func(r idempotency.Request) error {
				if _, err := g.Reserve(t.Context(), nil, r, failing, last); !errors.Is(err, failure) {
					return err
				}
				return nil
			},
			"spent": func(r idempotency.Request) error {
				r.TTL = time.Millisecond
				if _, err := g.Once(t.Context(), nil, r, sale); err != nil {
					return err
				}
				time.Sleep(10 * time.Millisecond)
				n, err := g.Reap(t.Context())
				if err == nil && n != 1 {
					t.Errorf("%d answers were removed", n)
				}
				return err
			},
		} {
			r := buy(name)
			if err := first(r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			before := s.Count(t, "SELECT n FROM stock WHERE id = 1")
			other := r
			other.Fingerprint = payload("two")
			never := func() ([]byte, error) {
				t.Errorf("%s: the write was run", name)
				return nil, nil
			}
			for entry, again := range map[string]func(r idempotency.Request) (idempotency.Result, error){
				"Once": func(r idempotency.Request) (idempotency.Result, error) {
					return g.Once(t.Context(), nil, r, func(context.Context, *sql.Tx) ([]byte, error) { return never() })
				},
				"OnceTx": func(r idempotency.Request) (idempotency.Result, error) {
					tx, err := s.db.BeginTx(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = tx.Rollback() }()
					return g.OnceTx(t.Context(), tx, nil, r, func(context.Context) ([]byte, error) { return never() })
				},
				"Reserve": func(r idempotency.Request) (idempotency.Result, error) {
					step := failing
					step.Call = func(context.Context, idempotency.Call) ([]byte, error) { return never() }
					return g.Reserve(t.Context(), nil, r, step)
				},
			} {
				result, err := again(other)
				if !errors.Is(err, idempotency.ErrMismatch) || result.Body != nil {
					t.Errorf("%s, then %s: %q, %v; want ErrMismatch", name, entry, result.Body, err)
				}
			}
			if after := s.Count(t, "SELECT n FROM stock WHERE id = 1"); after != before {
				t.Errorf("%s: %d were sold", name, before-after)
			}
		}
		close(leaveStep)
	})
}

// TestMismatch_race has two requests meet at the insert: one is done, the other is a
// mismatch.
func TestMismatch_race(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		for range 10 {
			s.Exec(t, "DELETE FROM idempotency")
			s.Exec(t, "UPDATE stock SET n = 10 WHERE id = 1")
			errs := make(chan error, 20)
			start := make(chan struct{})
			for i := range cap(errs) {
				go func() {
					<-start
					r := buy("order")
					r.Fingerprint = payload([]string{"one", "two"}[i%2])
					r.Wait = 5 * time.Second
					_, err := g.Once(t.Context(), nil, r, sale)
					errs <- err
				}()
			}
			close(start)
			var answered, mismatched int
			for range cap(errs) {
				switch err := <-errs; {
				case err == nil:
					answered++
				case errors.Is(err, idempotency.ErrMismatch):
					mismatched++
				default:
					t.Errorf("once: %v", err)
				}
			}
			if answered != 10 || mismatched != 10 {
				t.Errorf("%d answered, %d mismatched", answered, mismatched)
			}
			s.stock(t, 9)
		}
	})
}
