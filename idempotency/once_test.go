// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// payload stands for what a client asks for.
func payload(s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return sum[:]
}

// guard makes the tables and a guard on the shop's business pool.
func (s *shop) guard(t *testing.T, opts ...idempotency.Option) *idempotency.Guard {
	t.Helper()
	s.guardTables(t)
	return s.newGuard(t, s.db, opts...)
}

func (s *shop) newGuard(t *testing.T, db *sql.DB, opts ...idempotency.Option) *idempotency.Guard {
	t.Helper()
	g, err := idempotency.New(db, append([]idempotency.Option{idempotency.WithNamespace(namespace), idempotency.WithReapInterval(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// sale is the write of a request: it takes one out of the stock.
func sale(ctx context.Context, tx *sql.Tx) ([]byte, error) {
	if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 1"); err != nil {
		return nil, err
	}
	var n []byte
	if err := tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = 1").Scan(&n); err != nil {
		return nil, err
	}
	return append([]byte("left: "), n...), nil
}

// TestOnce_sameKey_P11 has 200 callers ask for the same thing at once.
func TestOnce_sameKey_P11(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.db.SetMaxOpenConns(50)
		lease := s.acquire(t, s.locker)
		var mu sync.Mutex
		var replayed int
		var bodies [][]byte
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				for {
					result, err := g.Once(t.Context(), lease, idempotency.Request{Key: "order-1", Fingerprint: payload("one")}, sale)
					if errors.Is(err, idempotency.ErrInProgress) {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("once: %v", err)
						return
					}
					bodies = append(bodies, result.Body)
					if result.Replayed {
						replayed++
					}
					return
				}
			})
		}
		callers.Wait()
		s.stock(t, 9)
		if replayed != 199 || len(bodies) != 200 {
			t.Errorf("%d answers, %d of them replayed", len(bodies), replayed)
		}
		for _, b := range bodies {
			if !bytes.Equal(b, []byte("left: 9")) {
				t.Errorf("answer %q", b)
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

var _ = tier.ErrHeld
