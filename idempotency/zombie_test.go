// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier"
)

// zombie loses its lease while its process is cut off, and does not know what
// became of it: the successor is granted, and has written nothing.
func (s *shop) zombie(t *testing.T) (zombie, successor *tier.Lease) {
	t.Helper()
	zombie = s.acquire(t, s.locker)
	s.node.ToMySQL.BlackHole()
	t.Cleanup(func() {
		_ = s.node.ToMySQL.Heal()
		_ = zombie.Release(context.Background()) // lost
	})
	successor = s.acquire(t, s.peer)
	t.Cleanup(func() {
		if err := successor.Release(context.Background()); err != nil {
			t.Errorf("the successor: %v", err)
		}
	})
	if successor.Fence() <= zombie.Fence() {
		t.Fatalf("fence %d after %d", successor.Fence(), zombie.Fence())
	}
	return zombie, successor
}

// unchanged checks that nothing was sold, and no request is known.
func (s *shop) unchanged(t *testing.T) {
	t.Helper()
	s.stock(t, 10)
	s.completed(t, 0)
}

// TestZombie_sameDatabase_P3 wakes a holder up whose successor has not written yet:
// every way to write refuses it, and its successor's write is the only one.
func TestZombie_sameDatabase_P3(t *testing.T) {
	countingBothWays(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		zombie, successor := s.zombie(t)
		_, err := g.Once(t.Context(), zombie, buy("order"), sale)
		if !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("Once: %v, want ErrStaleFence", err)
		}
		s.unchanged(t)
		for name, prove := range map[string]func(tx *sql.Tx) error{
			"ConfirmTx": func(tx *sql.Tx) error { return idempotency.ConfirmTx(t.Context(), tx, zombie) },
			"ReleaseTx": func(tx *sql.Tx) error { return idempotency.ReleaseTx(t.Context(), tx, zombie) },
			"OnceTx": func(tx *sql.Tx) error {
				_, err := g.OnceTx(t.Context(), tx, zombie, buy("order"), func(ctx context.Context) ([]byte, error) { return sale(ctx, tx) })
				return err
			},
		} {
			tx := s.sell(t)
			if err := prove(tx); !errors.Is(err, idempotency.ErrStaleFence) {
				t.Errorf("%s: %v, want ErrStaleFence", name, err)
			}
			_ = tx.Rollback()
			s.unchanged(t)
		}
		p := &provider{}
		if _, err := g.Reserve(t.Context(), zombie, buy("order"), purchase(p)...); !errors.Is(err, idempotency.ErrStaleFence) || p.calls != 0 {
			t.Errorf("Reserve: %v after %d charges, want ErrStaleFence", err, p.calls)
		}
		s.unchanged(t)
		if n := s.Held(t); n != 1 {
			t.Errorf("%d leases are held after the zombie's attempts", n)
		}
		if result, err := g.Once(t.Context(), successor, buy("order"), sale); err != nil || result.Replayed {
			t.Errorf("the successor: replayed %v, %v", result.Replayed, err)
		}
		s.stock(t, 9)
		// What was done is told to the zombie, too.
		if result, err := g.Once(t.Context(), zombie, buy("order"), neverWrite(t)); err != nil || !result.Replayed {
			t.Errorf("a replay: %v, %v", result.Replayed, err)
		}
	})
}

// elsewhere is a business database that is not the lock's.
func (s *shop) elsewhere(t *testing.T) *shop {
	t.Helper()
	other := map[stack.Engine]stack.Engine{stack.MariaDB: stack.MySQL, stack.MySQL: stack.MariaDB}[s.Database.Server().Engine()]
	return newShop(t, other, "")
}

// admitted sells in a transaction of its own when the guard admits the lease.
func (s *shop) admitted(t *testing.T, g *idempotency.Guard, lease *tier.Lease) error {
	t.Helper()
	tx := s.sell(t)
	if err := g.Admit(t.Context(), tx, lease); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// TestZombie_anotherDatabase_P3 is the same where no statement can look at the lease
// row. The successor's Claim refuses the zombie; without it the highest fence seen is
// the zombie's own, and its write is accepted: that is why there is Claim.
func TestZombie_anotherDatabase_P3(t *testing.T) {
	onBothEngines(t, func(t *testing.T, lock *shop) {
		s := lock.elsewhere(t)
		g := s.guard(t, idempotency.WithHighWater())
		zombie, successor := lock.zombie(t)

		if err := s.admitted(t, g, zombie); err != nil { // nobody has claimed
			t.Errorf("without Claim: %v; the negative control wants it accepted", err)
		}
		s.stock(t, 9)
		if err := g.Claim(t.Context(), zombie); err != nil {
			t.Errorf("claim of the highest fence seen: %v", err)
		}

		if err := g.Claim(t.Context(), successor); err != nil {
			t.Fatalf("claim: %v", err)
		}
		if err := s.admitted(t, g, zombie); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("Admit: %v, want ErrStaleFence", err)
		}
		if err := g.Claim(t.Context(), zombie); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("Claim: %v, want ErrStaleFence", err)
		}
		if _, err := g.Once(t.Context(), zombie, buy("order"), neverWrite(t)); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("Once: %v, want ErrStaleFence", err)
		}
		tx := s.sell(t)
		if _, err := g.OnceTx(t.Context(), tx, zombie, buy("order"), func(context.Context) ([]byte, error) { return nil, nil }); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("OnceTx: %v, want ErrStaleFence", err)
		}
		s.stock(t, 9)
		s.completed(t, 0)

		for range 2 { // as often as it likes
			if err := s.admitted(t, g, successor); err != nil {
				t.Errorf("the successor: %v", err)
			}
		}
		if _, err := g.Once(t.Context(), successor, buy("order"), sale); err != nil {
			t.Errorf("the successor: %v", err)
		}
		s.stock(t, 6)
	})
}

// TestReserve_zombie_P3 has a holder that does not know yet that its key was freed by
// an operator, and granted to another: nothing is called for it.
func TestReserve_zombie_P3(t *testing.T) {
	for name, opts := range provers {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				g := s.guard(t, opts...)
				zombie := s.acquire(t, s.locker)
				s.node.ToMySQL.BlackHole()
				s.Exec(t, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6) WHERE token IS NOT NULL")
				s.Flush(t)
				successor := s.acquire(t, s.peer)
				if err := g.Claim(t.Context(), successor); err != nil {
					t.Errorf("claim: %v", err)
				}
				p := &provider{}
				if _, err := g.Reserve(t.Context(), zombie, buy("order"), purchase(p)...); !errors.Is(err, idempotency.ErrStaleFence) || p.calls != 0 {
					t.Errorf("Reserve: %v after %d charges, want ErrStaleFence", err, p.calls)
				}
				s.unchanged(t)
				if err := s.node.ToMySQL.Heal(); err != nil {
					t.Error(err)
				}
				_ = zombie.Release(t.Context()) // lost
				if err := successor.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestClaim_waits has a new tenure's Claim wait for a write that was admitted before,
// so that what it reads afterwards holds it.
func TestClaim_waits(t *testing.T) {
	onBothEngines(t, func(t *testing.T, lock *shop) {
		s := lock.elsewhere(t)
		g := s.guard(t, idempotency.WithHighWater())
		zombie, successor := lock.zombie(t)
		tx := s.sell(t)
		if err := g.Admit(t.Context(), tx, zombie); err != nil {
			t.Fatal(err)
		}
		claimed := make(chan error, 1)
		go func() { claimed <- g.Claim(context.Background(), successor) }()
		select {
		case err := <-claimed:
			t.Errorf("claimed while an admitted write was not committed: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		if err := <-claimed; err != nil {
			t.Errorf("claim: %v", err)
		}
		s.stock(t, 9)
	})
}

// TestFence_ofAnotherKey has fences judged by their own key only.
func TestFence_ofAnotherKey(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		high := s.newGuard(t, s.db, idempotency.WithHighWater())
		early := s.acquire(t, s.locker) // sku
		late, err := s.locker.Acquire(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		foreign := map[string]*idempotency.Guard{}
		for name, opts := range map[string][]idempotency.Option{
			"another namespace":                {idempotency.WithNamespace("shop2")},
			"a namespace that begins the same": {idempotency.WithNamespace("sho")},
			"another namespace, high water":    {idempotency.WithNamespace("shop-a"), idempotency.WithHighWater()},
		} {
			foreign[name] = s.newGuard(t, s.db, opts...)
		}
		idle(t, s.db)
		s.proxy.Mark()
		of := buy("order")
		of.LockKey = "other"
		p := &provider{}
		refused := map[string]error{}
		_, refused["Once for another lock's key"] = g.Once(t.Context(), early, of, neverWrite(t))
		_, refused["Reserve for another lock's key"] = g.Reserve(t.Context(), early, of, purchase(p)...)
		_, refused["Once, high water, for another lock's key"] = high.Once(t.Context(), early, of, neverWrite(t))
		_, refused["OnceTx for another lock's key"] = g.OnceTx(t.Context(), untouched{t}, early, of, nil)
		for name, g := range foreign {
			_, refused["Once in "+name] = g.Once(t.Context(), early, buy("order"), neverWrite(t))
			_, refused["Reserve in "+name] = g.Reserve(t.Context(), early, buy("order"), purchase(p)...)
		}
		if n := s.proxy.Bytes(); n != 0 {
			t.Errorf("%d bytes were sent to refuse them", n)
		}
		for name, g := range foreign {
			refused["Claim in "+name] = g.Claim(t.Context(), early)
			tx := s.sell(t)
			refused["Admit in "+name] = g.Admit(t.Context(), tx, early)
			_ = tx.Rollback()
		}
		for name, err := range refused {
			if !errors.Is(err, idempotency.ErrWrongKey) {
				t.Errorf("%s: %v, want ErrWrongKey", name, err)
			}
		}
		if p.calls != 0 {
			t.Errorf("%d charges", p.calls)
		}
		s.unchanged(t)
		if n := s.Count(t, "SELECT COUNT(*) FROM idempotency_fence"); n != 0 {
			t.Errorf("%d fences were raised", n)
		}
		// A higher fence of another key is no successor.
		for _, lease := range []*tier.Lease{late, early} {
			if err := high.Claim(t.Context(), lease); err != nil {
				t.Errorf("claim of %q: %v", lease.Key(), err)
			}
			if err := s.admitted(t, high, lease); err != nil {
				t.Errorf("admit of %q: %v", lease.Key(), err)
			}
		}
		of.LockKey = key
		if _, err := g.Once(t.Context(), early, of, sale); err != nil {
			t.Errorf("for its own key: %v", err)
		}
		for _, lease := range []*tier.Lease{late, early} {
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
