// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// stock is a row that is written under leases.
type stock struct{ *tiers.Tiers }

func newStock(t *testing.T, s *tiers.Tiers) stock {
	t.Helper()
	s.Exec(t, "CREATE TABLE stock (sku INT PRIMARY KEY, n INT NOT NULL)")
	s.Exec(t, "INSERT INTO stock VALUES (1, 10)")
	return stock{s}
}

func (s stock) read(t *testing.T) int {
	t.Helper()
	return s.Count(t, "SELECT n FROM stock WHERE sku = 1")
}

// write is a guarded write of what the holder makes of what it has read.
func (s stock) write(t *testing.T, lease *tier.Lease, n int) error {
	t.Helper()
	tx, err := s.Admin.BeginTx(t.Context(), &sql.TxOptions{})
	noError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), "UPDATE stock SET n = ? WHERE sku = 1", n)
	noError(t, err)
	if err := idempotency.ConfirmTx(t.Context(), tx, lease); err != nil {
		return err
	}
	return tx.Commit()
}

// A holds locally and has read. MySQL returns; C is granted, writes and releases
// while A's promotion is on its way. A is promoted, and what it makes of what it
// has read is refused.
func TestOutage_promotionTrap_L7_L8(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			goods := newStock(t, s)
			logger, log := logged()
			// A long TTL: no renewal brings the mark back that Redis forgets.
			a, c := join(t, s, soonOut(), logger, tier.WithTTL(12*time.Second)), join(t, s)
			a.ToMySQL.Cut()
			a.opens(t, "inventory/1")
			lease := a.must(t, "inventory/1", tier.LevelLocal)
			read := goods.read(t)

			s.Flush(t)
			gate := make(chan struct{})
			var claims atomic.Int64
			a.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
				if isClaim(r) {
					claims.Add(1)
					return stack.HoldUntil(gate)
				}
				return stack.Pass
			})
			noError(t, a.ToMySQL.Heal())
			until(t, 2*time.Second+leeway, "A's promotion is on its way", func() bool { return claims.Load() > 0 })
			other := c.must(t, "inventory/1", tier.LevelFull)
			noError(t, goods.write(t, other, goods.read(t)-3))
			released(t, other)
			close(gate)

			until(t, 10*time.Second, "A is promoted", func() bool { return log.FilterMessageSnippet("others are kept from a key").Len() > 0 })
			if err := lease.Verify(t.Context()); err != nil {
				t.Errorf("A, promoted: %v", err)
			}
			if lease.Level() != tier.LevelLocal || lease.Fence() != 0 {
				t.Errorf("promoted to level %s with fence %d", lease.Level(), lease.Fence())
			}
			unfenced(t, lease)
			if err := goods.write(t, lease, read-1); !errors.Is(err, idempotency.ErrUnfenced) {
				t.Errorf("A's write: %v, want ErrUnfenced", err)
			}
			if n := goods.read(t); n != 7 {
				t.Errorf("the stock is %d, want C's 7", n)
			}
			if n := s.Held(t); n != 1 {
				t.Errorf("%d rows are held, want that of the promoted lease", n)
			}
			released(t, lease)
			if isTaken(t, s, "inventory/1") {
				t.Error("the row is held after the promoted lease's release")
			}
			c.settles(t, "inventory/1", tier.LevelFull, 2*time.Second+leeway)
		})
	}
}

// MySQL returns and C holds: A has lost, and learns it.
func TestOutage_promotionTooLate(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			a, c := join(t, s, soonOut(), tier.WithTTL(30*time.Second)), join(t, s)
			a.ToMySQL.Cut()
			a.opens(t, "inventory/1")
			lease := a.must(t, "inventory/1", tier.LevelLocal)
			s.Flush(t)
			theirs := c.must(t, "inventory/1", tier.LevelFull)
			if err := lease.Verify(t.Context()); err != nil {
				t.Errorf("A before MySQL is back: %v; it cannot know", err)
			}
			noError(t, a.ToMySQL.Heal())
			select {
			case <-lease.Context().Done():
			case <-time.After(2*time.Second + leeway):
				t.Fatal("A does not learn that C holds")
			}
			if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrLost) {
				t.Errorf("A's context ended with %v, want ErrLost", cause)
			}
			if err := lease.Verify(t.Context()); !errors.Is(err, tier.ErrLost) {
				t.Errorf("A asks: %v, want ErrLost", err)
			}
			if err := lease.Release(t.Context()); err != nil && !errors.Is(err, tier.ErrLost) {
				t.Errorf("A releases: %v", err)
			}
			noError(t, theirs.Verify(t.Context()))
			if _, err := a.TryAcquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrHeld) {
				t.Errorf("A again: %v, want ErrHeld", err)
			}
			released(t, theirs)
			a.settles(t, "inventory/1", tier.LevelFull, 2*time.Second+leeway)
		})
	}
}

// The mark of a local lease is believed for as long as it stands, also one that
// Redis got only when it was back itself, by a process whose MySQL is well.
func TestOutage_flaggedMark(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		for _, redis := range []string{"up", "back later"} {
			t.Run(engine.String()+"/redis "+redis, func(t *testing.T) {
				t.Parallel()
				s := tiers.New(t, engine)
				logger, log := logged()
				a, c := join(t, s, soonOut(), logger, tier.WithTTL(3*time.Second)), join(t, s)
				released(t, c.must(t, "inventory/1", tier.LevelFull))
				if redis != "up" {
					a.ToRedis.Cut()
					until(t, 10*time.Second, "A works without Redis, and knows", func() bool {
						released(t, a.must(t, "inventory/2", tier.LevelAuthority))
						return log.FilterMessageSnippet("redis is out").Len() > 0
					})
				}
				a.ToMySQL.Cut()
				a.opens(t, "inventory/1")
				lease := a.must(t, "inventory/1", tier.LevelLocal)
				if redis != "up" {
					noError(t, a.ToRedis.Heal())
					until(t, 10*time.Second, "a renewal plants the mark", func() bool { return s.Marks(t) == 1 })
				}

				var asked atomic.Int64
				c.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
					if r.Holds([]byte(soakNamespace + "/inventory/1")) {
						asked.Add(1)
					}
					return stack.Pass
				})
				for range 2 { // for longer than an ordinary mark is believed
					if other, err := c.Acquire(t.Context(), "inventory/1", tier.WithWait(1500*time.Millisecond)); !errors.Is(err, tier.ErrHeld) {
						t.Errorf("C: %v, %v, want ErrHeld", other, err)
					}
				}
				if n := asked.Load(); n != 0 {
					t.Errorf("C looked past the mark %d times", n)
				}
				noError(t, lease.Err())

				// Promoted, its row keeps others out whatever Redis knows.
				noError(t, a.ToMySQL.Heal())
				until(t, 10*time.Second, "A is promoted", func() bool { return isTaken(t, s, "inventory/1") })
				s.Flush(t)
				if _, err := c.TryAcquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrHeld) {
					t.Errorf("C after the promotion: %v, want ErrHeld", err)
				}
				released(t, lease)
				released(t, c.must(t, "inventory/1", tier.LevelFull))
			})
		}
	}
}
