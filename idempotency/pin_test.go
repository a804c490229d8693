// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// TestConfirmTx_uncommitted_blocksSuccessor holds a confirmed transaction open
// over the lease's end: nobody is granted the key before COMMIT, and nobody who
// wants another key waits.
func TestConfirmTx_uncommitted_blocksSuccessor(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		neighbour, err := s.peer.Acquire(t.Context(), "neighbour")
		if err != nil {
			t.Fatal(err)
		}
		tx := s.sell(t)
		if err := confirm(t, tx, lease); err != nil {
			t.Fatal(err)
		}
		s.node.ToMySQL.BlackHole()
		<-lease.Done()
		granted := make(chan *tier.Lease, 1)
		go func() {
			next, err := s.peer.Acquire(context.Background(), key)
			if err != nil {
				t.Errorf("the successor: %v", err)
			}
			granted <- next
		}()
		// Two TTLs: the lease has long expired, its neighbour has to be renewed.
		for end := time.Now().Add(2 * ttl); time.Now().Before(end); {
			start := time.Now()
			other, err := s.peer.TryAcquire(t.Context(), "other")
			if err != nil {
				t.Fatalf("another key: %v", err)
			}
			if err := other.Release(t.Context()); err != nil {
				t.Errorf("another key: %v", err)
			}
			// A lock wait is a second.
			if took := time.Since(start); took > 900*time.Millisecond {
				t.Errorf("another key took %v", took)
			}
			select {
			case <-granted:
				t.Fatal("granted while a guarded write was under way")
			case <-time.After(50 * time.Millisecond):
			}
		}
		if n := s.Count(t, "SELECT COUNT(*) FROM lease WHERE lock_key = 'shop/sku' AND expires_at > UTC_TIMESTAMP(6)"); n != 0 {
			t.Error("the row has not expired: the test tests nothing")
		}
		if err := neighbour.Err(); err != nil {
			t.Errorf("a neighbour was not renewed: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("commit of a confirmed transaction: %v", err)
		}
		next := <-granted
		if next == nil {
			return
		}
		s.stock(t, 9) // what the successor reads holds the write
		if next.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
		}
		if err := s.node.ToMySQL.Heal(); err != nil {
			t.Error(err)
		}
		if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
			t.Errorf("release of the expired lease: %v, want ErrLost", err)
		}
		for _, l := range []*tier.Lease{next, neighbour} {
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
		}
	})
}

// TestConfirmTx_uncommitted_release lets Release wait for the guarded write,
// within its bound, and finish behind.
func TestConfirmTx_uncommitted_release(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		// Committed within the bound.
		lease := s.acquire(t, s.locker)
		tx := s.sell(t)
		if err := confirm(t, tx, lease); err != nil {
			t.Fatal(err)
		}
		committed := make(chan time.Time, 1)
		time.AfterFunc(200*time.Millisecond, func() {
			committed <- time.Now()
			if err := tx.Commit(); err != nil {
				t.Errorf("commit: %v", err)
			}
		})
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release while a guarded write commits: %v", err)
		}
		select {
		case <-committed:
		default:
			t.Error("released before the guarded write was committed")
		}

		// Not committed within the bound.
		lease = s.acquire(t, s.locker)
		tx = s.sell(t)
		if err := confirm(t, tx, lease); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := lease.Release(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("release: %v, want the context's error", err)
		}
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("release took %v, a second is its bound", took)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("commit: %v", err)
		}
		s.stock(t, 8)
		next, err := s.peer.Acquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
