// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// provers are the two ways of a guard to prove a tenure.
var provers = map[string][]idempotency.Option{"lease row": nil, "high water": {idempotency.WithHighWater()}}

// reread takes one out as a program does that trusts its lock: it reads, thinks, and
// writes what it has come to.
func reread(ctx context.Context, tx *sql.Tx) ([]byte, error) {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = 1").Scan(&n); err != nil {
		return nil, err
	}
	_, err := tx.ExecContext(ctx, "UPDATE stock SET n = ? WHERE id = 1", n-1)
	return fmt.Append(nil, n-1), err
}

// slowCommits holds each COMMIT up for a while.
func (s *shop) slowCommits() {
	s.proxy.OnRequest(func(r stack.Request) stack.Action {
		if !isCommit(r) {
			return stack.Pass
		}
		arrive := make(chan struct{})
		time.AfterFunc(rand.N(30*time.Millisecond), func() { close(arrive) })
		return stack.HoldUntil(arrive)
	})
}

// hurried has 64 workers of two processes, half of which hold the lock for less time
// than their writes take, which go on behind; all have ended when it returns. The
// leases of the others may be handed on. It returns how many tenures were.
func (s *shop) hurried(t *testing.T, times int, write func(lease *tier.Lease, n int) error) (handedOn int) {
	t.Helper()
	s.db.SetMaxOpenConns(80)
	s.db.SetMaxIdleConns(80)
	var mu sync.Mutex
	tenures := make(map[driver.Token]int)
	var workers, writes sync.WaitGroup
	for i := range 64 {
		locker := []*tier.Locker{s.locker, s.peer}[i%2]
		workers.Go(func() {
			for j := range times {
				lease, err := locker.Acquire(t.Context(), key, tier.WithWait(time.Minute), tier.WithHandoffFor(time.Minute))
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				mu.Lock()
				tenures[lease.Tenure().Token]++
				mu.Unlock()
				done := make(chan struct{})
				writes.Go(func() {
					defer close(done)
					if err := write(lease, i*times+j); err != nil && !errors.Is(err, idempotency.ErrStaleFence) && !errors.Is(err, idempotency.ErrInProgress) {
						t.Errorf("write: %v", err)
					}
				})
				var hurry <-chan time.Time
				if i < 32 {
					hurry = time.After(rand.N(25 * time.Millisecond))
				}
				select {
				case <-done:
				case <-hurry:
				}
				_ = lease.Release(t.Context()) // at its bound when a write is under way
			}
		})
	}
	workers.Wait()
	writes.Wait()
	t.Logf("%d tenures of %d leases", 64*times, len(tenures))
	return 64*times - len(tenures)
}

// TestPins_hurried_P3 lets Release begin while guarded writes are under way: no two of
// them overlap, so none is lost.
func TestPins_hurried_P3(t *testing.T) {
	for name, opts := range provers {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				g := s.guard(t, opts...)
				s.restock(t, 1000000)
				s.slowCommits()
				handedOn := s.hurried(t, scaled(2, 30), func(lease *tier.Lease, n int) error {
					_, err := g.Once(context.Background(), lease, buy(fmt.Sprint("order-", n)), reread)
					return err
				})
				// What a high-water guard has claimed goes back through the server.
				if handedOn == 0 && opts == nil {
					t.Error("no lease was handed on: the test tests nothing of that")
				}
				written := s.Count(t, "SELECT COUNT(*) FROM idempotency WHERE state = 2")
				s.completed(t, written)
				s.stock(t, 1000000-written)
				t.Logf("%d of %d writes were in time", written, 64*scaled(2, 30))
				if written == 0 || written == 64*scaled(2, 30) {
					t.Errorf("%d writes: the test tests nothing", written)
				}
			})
		})
	}
}

// TestPins_unguarded_hurried is what the same workers do without a guard.
func TestPins_unguarded_hurried(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		s.restock(t, 1000000)
		s.slowCommits()
		var mu sync.Mutex
		written := 0
		handedOn := s.hurried(t, 1, func(*tier.Lease, int) error {
			tx, err := s.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if err != nil {
				return err
			}
			if _, err := reread(context.Background(), tx); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			mu.Lock()
			defer mu.Unlock()
			written++
			return tx.Commit()
		})
		if n := s.Count(t, "SELECT n FROM stock WHERE id = 1"); n <= 1000000-written {
			t.Errorf("stock %d after %d writes: none was lost, so the guarded test tests nothing", n, written)
		}
		if handedOn == 0 {
			t.Error("no lease was handed on")
		}
	})
}

// heldCommit keeps the next COMMIT until arrive is closed; sent is closed when it has
// been sent.
func (s *shop) heldCommit(arrive <-chan struct{}) (sent chan struct{}) {
	sent = make(chan struct{})
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
	return sent
}

// TestPins_releaseAtItsBound has Release return with its context's error while COMMIT
// is under way; nobody gets the key before it has ended, and then soon.
func TestPins_releaseAtItsBound(t *testing.T) {
	for name, opts := range provers {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				g := s.guard(t, opts...)
				lease := s.acquire(t, s.locker)
				arrive := make(chan struct{})
				sent := s.heldCommit(arrive)
				written := make(chan error, 1)
				go func() {
					_, err := g.Once(context.Background(), lease, buy("order"), sale)
					written <- err
				}()
				<-sent
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				start := time.Now()
				if err := lease.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("release: %v, want its context's error", err)
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("release took %v with 200ms", took)
				}
				nothing := func(context.Context, *sql.Tx) ([]byte, error) { return nil, nil }
				if _, err := g.Once(t.Context(), lease, buy("order-2"), nothing); !errors.Is(err, idempotency.ErrStaleFence) {
					t.Errorf("a write after Release has begun: %v, want ErrStaleFence", err)
				}
				granted := make(chan *tier.Lease, 1)
				go func() {
					next, err := s.peer.Acquire(context.Background(), key)
					if err != nil {
						t.Errorf("the successor: %v", err)
					}
					granted <- next
					close(granted)
				}()
				var next *tier.Lease
				select {
				case next = <-granted:
					t.Error("granted while a guarded write was under way")
				case <-time.After(300 * time.Millisecond):
				}
				close(arrive)
				if err := <-written; err != nil {
					t.Errorf("once: %v", err)
				}
				start = time.Now()
				if next == nil {
					next = <-granted
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("the successor waited %v", took)
				}
				s.stock(t, 9)
				if next != nil {
					if err := next.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("a second release: %v", err)
				}
			})
		})
	}
}

// TestReleaseTx_committed frees the key with the write, and a waiter has it no sooner.
// The lease ends as released, not as lost, and Release answers nil.
func TestReleaseTx_committed(t *testing.T) {
	countingBothWays(t, func(t *testing.T, s *shop) {
		registry := prometheus.NewRegistry()
		node := s.Node(t)
		locker, err := tier.New(node.Filter, node.Authority, tier.WithNamespace(namespace), tier.WithTTL(ttl), tier.WithMetrics(registry))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := locker.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		lease := s.acquire(t, locker)
		tx := s.sell(t)
		if err := idempotency.ReleaseTx(t.Context(), tx, lease); err != nil {
			t.Fatal(err)
		}
		granted := make(chan *tier.Lease, 1)
		go func() {
			next, err := s.peer.Acquire(context.Background(), key)
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			granted <- next
			close(granted)
		}()
		var next *tier.Lease
		select {
		case next = <-granted:
			t.Error("granted before COMMIT")
		case <-time.After(200 * time.Millisecond):
		}
		if err := lease.Err(); err != nil {
			t.Errorf("the tenure ended before COMMIT: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		// A renewal finds it gone, for Release has not been called.
		select {
		case <-lease.Context().Done():
		case <-time.After(10 * time.Second):
			t.Error("the lease goes on though its row was freed")
		}
		if cause := context.Cause(lease.Context()); !errors.Is(cause, context.Canceled) || errors.Is(cause, tier.ErrLost) {
			t.Errorf("the lease's context ended with %v, want context.Canceled", cause)
		}
		s.stock(t, 9)
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		if next == nil {
			next = <-granted
		}
		if next != nil {
			if err := next.Verify(t.Context()); err != nil {
				t.Errorf("Release took the successor's lease: %v", err)
			}
			if err := next.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "tierlock_lost_total" && m.GetCounter().GetValue() != 0 {
					t.Errorf("counted as lost: %v", m)
				}
			}
		}
	})
}

// TestReleaseTx_releaseAtOnce is the usual way: COMMIT, then Release.
func TestReleaseTx_releaseAtOnce(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		for _, commit := range []bool{true, false} {
			lease := s.acquire(t, s.locker)
			tx := s.sell(t)
			if err := idempotency.ReleaseTx(t.Context(), tx, lease); err != nil {
				t.Fatal(err)
			}
			end, held := tx.Commit, 0
			if !commit {
				end, held = tx.Rollback, 1
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if n := s.Held(t); n != held {
				t.Errorf("committed %v: %d leases are held, want %d", commit, n, held)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("committed %v: release: %v", commit, err)
			}
			if n := s.Held(t); n != 0 {
				t.Errorf("committed %v: %d leases are held after Release", commit, n)
			}
			if cause := context.Cause(lease.Context()); errors.Is(cause, tier.ErrLost) {
				t.Errorf("committed %v: the lease ended with %v", commit, cause)
			}
			tx = s.sell(t)
			if err := idempotency.ReleaseTx(t.Context(), tx, lease); !errors.Is(err, idempotency.ErrStaleFence) {
				t.Errorf("committed %v: once more, after Release: %v, want ErrStaleFence", commit, err)
			}
			_ = tx.Rollback()
		}
		s.stock(t, 9)
	})
}

// TestReleaseTx_rolledBack_renews goes on with a tenure whose transaction came to
// nothing.
func TestReleaseTx_rolledBack_renews(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		tx := s.sell(t)
		if err := idempotency.ReleaseTx(t.Context(), tx, lease); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if err := lease.Err(); err != nil {
				t.Fatalf("a tenure whose transaction was rolled back: %v", err)
			}
		}
		tx = s.sell(t)
		if err := confirm(t, tx, lease); err != nil {
			t.Errorf("confirm: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		s.stock(t, 9)
		if n := s.Held(t); n != 0 {
			t.Errorf("%d leases are held after Release", n)
		}
	})
}

// TestReleaseTx_minHold is refused before any I/O: the row has to keep it.
func TestReleaseTx_minHold(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease, err := s.locker.Acquire(t.Context(), key, tier.WithMinHold(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		tx := s.sell(t)
		s.proxy.Mark()
		if err := idempotency.ReleaseTx(t.Context(), tx, lease); !errors.Is(err, tier.ErrOption) {
			t.Errorf("release in a transaction: %v, want ErrOption", err)
		}
		if n := s.proxy.Bytes(); n != 0 {
			t.Errorf("%d bytes were sent to refuse it", n)
		}
		if err := confirm(t, tx, lease); err != nil {
			t.Errorf("confirm: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
