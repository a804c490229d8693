// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
)

// reaping removes what is expired as fast as it can until the test's work is done.
func reaping(t *testing.T, g *idempotency.Guard) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			for ctx.Err() == nil {
				if _, err := g.Reap(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, idempotency.ErrRetryTx) {
					t.Errorf("reap: %v", err)
				}
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// TestReap_replays has answers expire while they are asked for and removed: a write is
// done as often as its key became new, and every answer is that of one of them.
func TestReap_replays(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.restock(t, 1000000)
		s.db.SetMaxOpenConns(40)
		stop := reaping(t, g)
		var runs, replayed atomic.Int64
		var mu sync.Mutex
		first, again := make(map[string]int), make(map[string]int)
		var callers sync.WaitGroup
		end, enough := time.Now().Add(time.Minute), int64(scaled(20, 1000))
		for i := range 16 {
			callers.Go(func() {
				for time.Now().Before(end) && (runs.Load() < enough || replayed.Load() < enough) {
					r := buy(fmt.Sprint("order-", i%4))
					r.TTL = 60 * time.Millisecond
					r.Wait = time.Second
					result, err := g.Once(t.Context(), nil, r, func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
						return sale(ctx, tx)
					})
					if errors.Is(err, idempotency.ErrInProgress) {
						continue
					}
					if err != nil {
						t.Errorf("once: %v", err)
						return
					}
					mu.Lock()
					if result.Replayed {
						replayed.Add(1)
						again[string(result.Body)]++
					} else {
						runs.Add(1)
						first[string(result.Body)]++
					}
					mu.Unlock()
				}
			})
		}
		callers.Wait()
		stop()
		s.stock(t, 1000000-int(runs.Load())) // an answer that is not a replay is an effect, and there is no other
		for body, n := range first {
			if n != 1 {
				t.Errorf("%d writes have the answer %q", n, body)
			}
		}
		for body := range again {
			if first[body] != 1 {
				t.Errorf("a replay of %q, which no write has answered", body)
			}
		}
		if runs.Load() < enough || replayed.Load() < enough {
			t.Errorf("%d writes, %d replays: the test tests nothing", runs.Load(), replayed.Load())
		}
	})
}

// TestReap_spent keeps that a key was used, however often it is reaped and asked for.
func TestReap_spent(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t, idempotency.WithForbidReuse())
		stop := reaping(t, g)
		defer stop()
		var callers sync.WaitGroup
		var first, spent atomic.Int64
		for i := range 16 {
			callers.Go(func() {
				r := buy(fmt.Sprint("order-", i%4))
				r.TTL = 50 * time.Millisecond
				r.Wait = 5 * time.Second
				for last := false; ; {
					result, err := g.Once(t.Context(), nil, r, sale)
					switch {
					case errors.Is(err, idempotency.ErrSpent):
						if last {
							spent.Add(1)
							return
						}
						last = true // and once more, after a while
						time.Sleep(50 * time.Millisecond)
					case err != nil:
						t.Errorf("once: %v", err)
						return
					case last:
						t.Errorf("spent, and then %q", result.Body)
						return
					case !result.Replayed:
						first.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if first.Load() != 4 || spent.Load() != 16 {
			t.Errorf("%d writes of 4 keys, %d callers heard that theirs is spent", first.Load(), spent.Load())
		}
		s.stock(t, 6)
		if n := s.Count(t, "SELECT COUNT(*) FROM idempotency WHERE state = 4 AND result IS NULL AND attempt IS NULL AND expires_at > '9999-01-01'"); n > 4 {
			t.Errorf("%d keys are spent", n)
		}
		other := buy("order-0")
		other.Fingerprint = payload("two")
		if _, err := g.Once(t.Context(), nil, other, neverWrite(t)); !errors.Is(err, idempotency.ErrMismatch) {
			t.Errorf("another request under a spent key: %v, want ErrMismatch", err)
		}
		for entry, again := range map[string]func() error{
			"OnceTx": func() error {
				tx := s.sell(t)
				_, err := g.OnceTx(t.Context(), tx, nil, buy("order-0"), func(context.Context) ([]byte, error) { return nil, errors.New("run") })
				return err
			},
			"Reserve": func() error {
				_, err := g.Reserve(t.Context(), nil, buy("order-0"), purchase(&provider{})...)
				return err
			},
		} {
			if err := again(); !errors.Is(err, idempotency.ErrSpent) {
				t.Errorf("%s: %v, want ErrSpent", entry, err)
			}
		}
		s.stock(t, 6)
	})
}

// TestReap_takeover has requests taken over from attempts that have left them while
// everything that looks expired is removed: none that is under way is touched.
func TestReap_takeover(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		stop := reaping(t, g)
		defer stop()
		n := scaled(8, 200)
		s.restock(t, n)
		failure := errors.New("no mail today")
		expires := func(key, when string) {
			s.Exec(t, "UPDATE idempotency SET expires_at = UTC_TIMESTAMP(6) + INTERVAL "+when+" WHERE request_key = ?", []byte(key))
		}
		var callers sync.WaitGroup
		slots := make(chan struct{}, 16)
		for i := range n {
			slots <- struct{}{}
			callers.Go(func() {
				defer func() { <-slots }()
				r := buy(fmt.Sprint("order-", i))
				p := &provider{}
				steps := purchase(p)
				mail := steps[1].Call
				for attempt := range 3 {
					steps[1].Call = func(ctx context.Context, c idempotency.Call) ([]byte, error) {
						expires(r.Key, "-1 HOUR") // but the attempt has time
						time.Sleep(50 * time.Millisecond)
						expires(r.Key, "1 HOUR")
						if attempt < 2 {
							return nil, failure
						}
						return mail(ctx, c)
					}
					result, err := g.Reserve(t.Context(), nil, r, steps...)
					for end := time.Now().Add(10 * time.Second); errors.Is(err, idempotency.ErrInProgress) && time.Now().Before(end); {
						result, err = g.Reserve(t.Context(), nil, r, steps...) // the reaper is looking at the row
					}
					if attempt < 2 && !errors.Is(err, failure) || attempt == 2 && (err != nil || string(result.Body) != "mailed receipt") {
						t.Errorf("%s, attempt %d: %q, %v", r.Key, attempt, result.Body, err)
					}
				}
				if p.calls != 1 {
					t.Errorf("%s: %d calls for one charge", r.Key, p.calls)
				}
			})
		}
		callers.Wait()
		s.stock(t, 0)
		s.completed(t, n)
	})
}

// TestReap_renewal has many callers ask under keys that are expired and being removed:
// each is done once more, by one of them.
func TestReap_renewal(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.db.SetMaxOpenConns(40)
		rounds := scaled(10, 200)
		s.restock(t, rounds*4)
		for round := range rounds {
			if round > 0 {
				s.Exec(t, "UPDATE idempotency SET expires_at = UTC_TIMESTAMP(6)")
			}
			stop := reaping(t, g)
			var callers sync.WaitGroup
			var first atomic.Int64
			for i := range 16 {
				callers.Go(func() {
					result := untilAnswered(t, func() (idempotency.Result, error) {
						if i < 8 {
							return g.Once(t.Context(), nil, buy(fmt.Sprint("order-", i%2)), sale)
						}
						return g.Reserve(t.Context(), nil, buy(fmt.Sprint("steps-", i%2)), purchase(&provider{})...)
					})
					if !result.Replayed {
						first.Add(1)
					}
				})
			}
			callers.Wait()
			stop()
			if first.Load() != 4 {
				t.Errorf("round %d: %d of 4 requests were done", round, first.Load())
			}
			s.completed(t, 4)
		}
		s.stock(t, 0)
	})
}

// TestReap_live leaves alone what is expired and still under way, in steps or in a
// transaction, and takes it once it is not.
func TestReap_live(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		reap := func(when string, want int) {
			t.Helper()
			if n, err := g.Reap(t.Context()); err != nil || n != want {
				t.Errorf("%s: %d requests were removed, want %d: %v", when, n, want, err)
			}
		}
		expire := func() { s.Exec(t, "UPDATE idempotency SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND") }
		result, err := g.Reserve(t.Context(), nil, buy("steps"), idempotency.Step{Name: "a", Call: func(context.Context, idempotency.Call) ([]byte, error) {
			expire()
			reap("in a step", 0)
			return []byte("a"), nil
		}})
		if err != nil || string(result.Body) != "a" {
			t.Errorf("reserve: %q, %v", result.Body, err)
		}
		expire()
		if _, err := g.Once(t.Context(), nil, buy("steps"), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			reap("in a transaction", 0)
			return sale(ctx, tx)
		}); err != nil {
			t.Errorf("once: %v", err)
		}
		reap("kept anew", 0)
		expire()
		reap("afterwards", 1)
		s.completed(t, 0)
	})
}
