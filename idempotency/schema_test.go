// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/tiers"
)

// TestEnsureSchema_manyAtOnce makes the tables from twenty connections, with and
// without a prefix and autocommit, and again over what is there.
func TestEnsureSchema_manyAtOnce(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		var all sync.WaitGroup
		for i := range 20 {
			db, err := sql.Open("mysql", tiers.WithParameters(s.Database.AdminDSN(), []string{"", "autocommit=0"}[i%2]))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			all.Go(func() {
				for _, opt := range []idempotency.Option{nil, idempotency.WithTablePrefix("p_")} {
					if err := idempotency.EnsureSchema(t.Context(), db, opt); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		g := s.newGuard(t, s.Admin, idempotency.WithTablePrefix("p_"))
		if err := g.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := g.Once(t.Context(), nil, buy("one"), sale); err != nil {
			t.Error(err)
		}
		if n := s.Count(t, "SELECT COUNT(*) FROM p_idempotency"); n != 1 {
			t.Errorf("%d rows in the prefixed table", n)
		}
	})
}

// TestCheck tells what is missing.
func TestCheck_tables(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		if err := s.newGuard(t, s.db).Check(t.Context()); !errors.Is(err, idempotency.ErrSchema) {
			t.Errorf("without tables: %v", err)
		}
		g := s.guard(t)
		if err := g.Check(t.Context()); err != nil {
			t.Errorf("with all: %v", err)
		}
		if err := s.newGuard(t, s.db, idempotency.WithMaxResult(1<<30)).Check(t.Context()); !errors.Is(err, idempotency.ErrOption) {
			t.Errorf("an answer larger than a packet: %v", err)
		}
		s.Exec(t, "REVOKE DELETE ON "+s.Database.Name+".idempotency FROM "+s.Database.Name+"b@'%'")
		if err := s.newGuard(t, s.pool(t, s.business)).Check(t.Context()); !errors.Is(err, idempotency.ErrSchema) {
			t.Errorf("without the right to delete: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Check(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}
