// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
)

// TestOnceTx_inProgress_leavesNoLocks has a second caller meet a first one that does
// not commit: what it had locked is free when it has its answer.
func TestOnceTx_inProgress_leavesNoLocks(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.Exec(t, "INSERT INTO stock VALUES (2, 10)")
		nothing := func(context.Context) ([]byte, error) { return nil, nil }
		first, err := s.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = first.Rollback() }()
		if _, err := g.OnceTx(t.Context(), first, nil, buy("one"), nothing); err != nil {
			t.Fatal(err)
		}
		second, err := s.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.ExecContext(t.Context(), "UPDATE stock SET n = n - 1 WHERE id = 2"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = g.OnceTx(t.Context(), second, nil, buy("one"), nothing)
		if !errors.Is(err, idempotency.ErrInProgress) || time.Since(start) > 10*time.Second {
			t.Errorf("after %v: %v, want ErrInProgress", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := s.db.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 2"); err != nil {
			t.Errorf("a row of a transaction that was rolled back: %v", err)
		}
		if n := s.Count(t, "SELECT n FROM stock WHERE id = 2"); n != 9 {
			t.Errorf("%d left, want 9: the second transaction's write remains", n)
		}
	})
}
