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
	"github.com/tierlock/tierlock/internal/stack"
)

// isCommit is the end of a guard's transaction; what ends a connection's other
// ones is spelt in the same way.
func isCommit(r stack.Request) bool { return r.Verb == "COM_QUERY" && r.Text == "COMMIT" }

// restock puts so many in.
func (s *shop) restock(t *testing.T, n int) {
	t.Helper()
	s.Exec(t, "UPDATE stock SET n = ? WHERE id = 1", n)
}

// completed checks that so many requests are answered, and no other is there.
func (s *shop) completed(t *testing.T, want int) {
	t.Helper()
	if n := s.Count(t, "SELECT COUNT(*) FROM idempotency WHERE state = 2 AND attempt IS NOT NULL AND in_progress_until IS NULL AND completed_at IS NOT NULL"); n != want {
		t.Errorf("%d requests are completed, want %d", n, want)
	}
	if n := s.Count(t, "SELECT COUNT(*) FROM idempotency"); n != want {
		t.Errorf("%d requests are known, want %d", n, want)
	}
}

// untilAnswered asks again as long as the answer is not known.
func untilAnswered(t *testing.T, ask func() (idempotency.Result, error)) idempotency.Result {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		result, err := ask()
		if err == nil {
			return result
		}
		if !errors.Is(err, idempotency.ErrInProgress) || time.Now().After(end) {
			t.Errorf("not answered: %v", err)
			return result
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestOnce_commitReplyLost_J7 loses the reply to every COMMIT, and the connection
// with it: the callers get the answer all the same, and each write was run once.
func TestOnce_commitReplyLost_J7(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		n := scaled(20, 1000)
		s.restock(t, n)
		lease := s.acquire(t, s.locker)
		var lost, runs atomic.Int64
		s.proxy.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
			if isCommit(r) {
				lost.Add(1)
				return stack.HangUp
			}
			return stack.Pass
		})
		bodies := make([]string, n)
		orders := make(chan int)
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for i := range orders {
					first := untilAnswered(t, func() (idempotency.Result, error) {
						return g.Once(t.Context(), lease, buy(fmt.Sprint("order-", i)), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
							runs.Add(1)
							return sale(ctx, tx)
						})
					})
					if first.Replayed {
						t.Errorf("order %d: replayed to who did it", i)
					}
					bodies[i] = string(first.Body)
				}
			})
		}
		for i := range n {
			orders <- i
		}
		close(orders)
		callers.Wait()
		s.proxy.OnReply(nil)
		if lost.Load() != int64(n) || runs.Load() != int64(n) {
			t.Errorf("%d replies to COMMIT were lost, and the writes run %d times, for %d requests", lost.Load(), runs.Load(), n)
		}
		s.stock(t, 0)
		s.completed(t, n)
		for i, body := range bodies {
			again, err := g.Once(t.Context(), lease, buy(fmt.Sprint("order-", i)), neverWrite(t))
			if err != nil || !again.Replayed || string(again.Body) != body || body == "" {
				t.Errorf("order %d: %q, and again %q, replayed %v: %v", i, body, again.Body, again.Replayed, err)
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func neverWrite(t *testing.T) idempotency.Write {
	return func(context.Context, *sql.Tx) ([]byte, error) {
		t.Error("the write was run")
		return nil, errors.New("never")
	}
}

// TestCommit_replyLost_unguarded is what it is all for: who repeats a plain
// transaction whose COMMIT had no answer does it twice.
func TestCommit_replyLost_unguarded(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		s.proxy.LoseReply(1, isCommit, stack.HangUp)
		for repeated := 0; ; repeated++ {
			tx, err := s.db.BeginTx(t.Context(), nil)
			if err == nil {
				_, err = sale(t.Context(), tx)
			}
			if err == nil {
				err = tx.Commit()
			}
			if err == nil {
				break
			}
			if repeated == 3 {
				t.Fatal(err)
			}
		}
		s.stock(t, 8)
	})
}

// TestOnce_commitLost_J7 cuts every second COMMIT off before the server gets it: the
// transaction is rolled back, and done again.
func TestOnce_commitLost_J7(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		n := scaled(8, 500)
		s.restock(t, n)
		lease := s.acquire(t, s.locker)
		var commits atomic.Int64
		runs := 0
		s.proxy.OnRequest(func(r stack.Request) stack.Action {
			if isCommit(r) && commits.Add(1)%2 == 1 {
				return stack.HangUp
			}
			return stack.Pass
		})
		for i := range n {
			result, err := g.Once(t.Context(), lease, buy(fmt.Sprint("order-", i)), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
				runs++
				return sale(ctx, tx)
			})
			if want := fmt.Sprint("left: ", n-1-i); err != nil || string(result.Body) != want || result.Replayed {
				t.Errorf("order %d: %q, replayed %v: %v", i, result.Body, result.Replayed, err)
			}
		}
		s.proxy.OnRequest(nil)
		if commits.Load() != int64(2*n) || runs != 2*n {
			t.Errorf("%d COMMITs and %d runs for %d requests", commits.Load(), runs, n)
		}
		s.stock(t, 0)
		s.completed(t, n)
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestOnce_commitDelayed_J7 has a COMMIT arrive after its caller has given up. Until
// then nobody does the write, and whoever asks later gets the answer; when the
// connection is gone instead, the next one does it.
func TestOnce_commitDelayed_J7(t *testing.T) {
	for name, arrives := range map[string]bool{"arrives": true, "never arrives": false} {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				g := s.guard(t)
				peer := s.newGuard(t, s.Admin) // not through the proxy
				n := scaled(2, 50)
				s.restock(t, n)
				for i := range n {
					request := buy(fmt.Sprint("order-", i))
					arrive, sent := make(chan struct{}), make(chan struct{})
					var once sync.Once
					s.proxy.OnRequest(func(r stack.Request) stack.Action {
						act := stack.Pass
						if isCommit(r) {
							once.Do(func() {
								act = stack.HoldUntil(arrive)
								close(sent)
							})
						}
						return act
					})
					ctx, giveUp := context.WithCancel(t.Context())
					given := make(chan error, 1)
					go func() {
						_, err := g.Once(ctx, nil, request, sale)
						given <- err
					}()
					<-sent
					giveUp()
					if err := <-given; !errors.Is(err, idempotency.ErrInProgress) {
						t.Errorf("who gave up: %v, want ErrInProgress: nobody knows", err)
					}
					if _, err := peer.Once(t.Context(), nil, request, neverWrite(t)); !errors.Is(err, idempotency.ErrInProgress) {
						t.Errorf("while COMMIT is under way: %v, want ErrInProgress", err)
					}
					if !arrives {
						s.proxy.Drop()
					}
					close(arrive)
					want := fmt.Sprint("left: ", n-1-i)
					got := untilAnswered(t, func() (idempotency.Result, error) { return peer.Once(t.Context(), nil, request, sale) })
					if string(got.Body) != want || arrives && !got.Replayed {
						t.Errorf("afterwards: %q, replayed %v; want %q", got.Body, got.Replayed, want)
					}
					got, err := g.Once(t.Context(), nil, request, neverWrite(t))
					if err != nil || string(got.Body) != want || !got.Replayed {
						t.Errorf("in the end: %q, replayed %v: %v", got.Body, got.Replayed, err)
					}
				}
				s.proxy.OnRequest(nil)
				s.stock(t, 0)
				s.completed(t, n)
			})
		})
	}
}

// TestReserve_commitLost_J7 loses the reply to each COMMIT of a request in steps, and
// then each COMMIT: what was called outside is not called again.
func TestReserve_commitLost_J7(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		n := scaled(3, 100)
		s.restock(t, 2*n)
		p := &provider{}
		buyAll := func(what string) {
			for i := range n {
				result, err := g.Reserve(t.Context(), nil, buy(fmt.Sprint(what, i)), purchase(p)...)
				if err != nil || string(result.Body) != "mailed receipt" || result.Replayed {
					t.Errorf("%s %d: %q, replayed %v: %v", what, i, result.Body, result.Replayed, err)
				}
			}
		}
		var lost, commits atomic.Int64
		s.proxy.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
			if isCommit(r) {
				lost.Add(1)
				return stack.HangUp
			}
			return stack.Pass
		})
		buyAll("reply")
		s.proxy.OnReply(nil)
		if lost.Load() != int64(3*n) { // the reservation and two steps
			t.Errorf("%d replies to COMMIT were lost, want %d", lost.Load(), 3*n)
		}
		s.proxy.OnRequest(func(r stack.Request) stack.Action {
			if isCommit(r) && commits.Add(1)%2 == 1 {
				return stack.HangUp
			}
			return stack.Pass
		})
		buyAll("request")
		s.proxy.OnRequest(nil)
		if commits.Load() != int64(6*n) {
			t.Errorf("%d COMMITs, want %d", commits.Load(), 6*n)
		}
		s.stock(t, 0)
		s.completed(t, 2*n)
		if p.calls != 2*n || len(p.charges) != 2*n {
			t.Errorf("%d calls for %d charges of %d requests", p.calls, len(p.charges), 2*n)
		}
	})
}

// TestCommit_delayedBeyondItsLimit_J7 has a COMMIT arrive while its caller, who still
// waits, is asking what came of it: as long as it may arrive nothing is done again.
func TestCommit_delayedBeyondItsLimit_J7(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		arrive := make(chan struct{})
		var held atomic.Int64 // the connection whose COMMIT is
		var looks, commits atomic.Int64
		s.proxy.OnRequest(func(r stack.Request) stack.Action {
			switch {
			case isCommit(r) && commits.Add(1) == 2: // the reservation's was the first
				held.Store(int64(r.Conn))
				return stack.HoldUntil(arrive)
			case held.Load() != 0 && at(r, "FOR UPDATE NOWAIT") && looks.Add(1) == 5:
				close(arrive)
			}
			return stack.Pass
		})
		p := &provider{}
		var saved atomic.Int64
		steps := purchase(p)
		save := steps[0].Save
		steps[0].Save = func(ctx context.Context, tx *sql.Tx, c idempotency.Call, out []byte) ([]byte, error) {
			saved.Add(1)
			return save(ctx, tx, c, out)
		}
		result, err := g.Reserve(t.Context(), nil, buy("order"), steps...)
		if err != nil || string(result.Body) != "mailed receipt" || result.Replayed {
			t.Errorf("reserve: %q, replayed %v: %v", result.Body, result.Replayed, err)
		}
		if looks.Load() < 5 || saved.Load() != 1 || p.calls != 1 {
			t.Errorf("%d looks, saved %d times, %d charges", looks.Load(), saved.Load(), p.calls)
		}
		s.stock(t, 9)
		s.completed(t, 1)
	})
}
