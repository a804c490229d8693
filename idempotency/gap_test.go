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

// TestOnce_gapLocked has somebody's transaction keep others from inserting where no
// row is to be seen, as a clean-up by hand does: that is waited for no longer than for
// a row.
func TestOnce_gapLocked(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		cleanUp, err := s.Admin.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		defer cleanUp.Rollback()
		if _, err := cleanUp.ExecContext(t.Context(), "DELETE FROM idempotency WHERE request_key < 'x'"); err != nil {
			t.Fatal(err)
		}
		p := &provider{}
		for name, ask := range map[string]func(ctx context.Context) (idempotency.Result, error){
			"Once": func(ctx context.Context) (idempotency.Result, error) { return g.Once(ctx, nil, buy("order"), sale) },
			"Reserve": func(ctx context.Context) (idempotency.Result, error) {
				return g.Reserve(ctx, nil, buy("order"), purchase(p)...)
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			start := time.Now()
			_, err := ask(ctx)
			cancel()
			if !errors.Is(err, idempotency.ErrInProgress) {
				t.Errorf("%s: %v after %v, want ErrInProgress", name, err, time.Since(start))
			}
		}
		s.unchanged(t)
		if err := cleanUp.Rollback(); err != nil {
			t.Error(err)
		}
		if _, err := g.Once(t.Context(), nil, buy("order"), sale); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}
