// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// rolledBack are the errors after which nothing of a transaction may be committed:
// deadlock, lock wait, snapshot conflict.
var rolledBack = []uint16{1213, 1205, 1020}

// executes tells a statement from what is sent to prepare or forget one.
func executes(r stack.Request) bool { return r.Verb == "COM_QUERY" || r.Verb == "COM_STMT_EXECUTE" }

// failNth answers the n-th statement from now with an error, in the server's place,
// and counts them. What ends a transaction, and what prepares a statement, is none.
func (s *shop) failNth(n int, number uint16) *atomic.Int64 {
	var seen atomic.Int64
	s.proxy.OnRequest(func(r stack.Request) stack.Action {
		if !executes(r) || r.Text == "ROLLBACK" || r.Text == "COMMIT" {
			return stack.Pass
		}
		if seen.Add(1) == int64(n) {
			return stack.SQLError(number, "injected")
		}
		return stack.Pass
	})
	return &seen
}

// nothingRemains goes on with a transaction that a helper has given up, as a caller
// does who does not look at errors.
func (s *shop) nothingRemains(t *testing.T, when string, tx *sql.Tx) {
	t.Helper()
	_, err := tx.ExecContext(t.Context(), "UPDATE stock SET n = n - 1 WHERE id = 1")
	if commit := tx.Commit(); err == nil || !errors.Is(commit, sql.ErrTxDone) {
		t.Errorf("%s: a further write: %v, its COMMIT: %v; want ErrTxDone", when, err, commit)
	}
	s.unchanged(t)
	if n := s.Count(t, "SELECT COUNT(*) FROM idempotency_fence"); n != 0 {
		t.Errorf("%s: %d fences were raised", when, n)
	}
}

// TestTx_rolledBack_J1_J4 has the server fail each statement of a helper in a caller's
// transaction: neither what was written before nor what is written after is there.
func TestTx_rolledBack_J1_J4(t *testing.T) {
	onceTx := func(t *testing.T, g *idempotency.Guard, tx *sql.Tx, lease *tier.Lease) error {
		_, err := g.OnceTx(t.Context(), tx, lease, buy("order"), func(ctx context.Context) ([]byte, error) { return sale(ctx, tx) })
		return err
	}
	for name, test := range map[string]struct {
		prove      func(t *testing.T, g *idempotency.Guard, tx *sql.Tx, lease *tier.Lease) error
		opts       []idempotency.Option
		statements int // at least
	}{
		"OnceTx":             {prove: onceTx, statements: 5},
		"OnceTx, high water": {prove: onceTx, opts: []idempotency.Option{idempotency.WithHighWater()}, statements: 6},
		"ConfirmTx": {statements: 1, prove: func(t *testing.T, _ *idempotency.Guard, tx *sql.Tx, lease *tier.Lease) error {
			return idempotency.ConfirmTx(t.Context(), tx, lease)
		}},
		"ReleaseTx": {statements: 1, prove: func(t *testing.T, _ *idempotency.Guard, tx *sql.Tx, lease *tier.Lease) error {
			return idempotency.ReleaseTx(t.Context(), tx, lease)
		}},
		"Admit": {statements: 2, prove: func(t *testing.T, g *idempotency.Guard, tx *sql.Tx, lease *tier.Lease) error {
			return g.Admit(t.Context(), tx, lease)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				g := s.guard(t, test.opts...)
				lease := s.acquire(t, s.locker)
				for _, number := range rolledBack {
					for n := 1; ; n++ {
						when := fmt.Sprintf("%d at statement %d", number, n)
						tx := s.sell(t)
						seen := s.failNth(n, number)
						err := test.prove(t, g, tx, lease)
						s.proxy.OnRequest(nil)
						if seen.Load() < int64(n) { // all were failed once
							if err != nil || n <= test.statements {
								t.Errorf("%s: %v; %d statements are expected at least", when, err, test.statements)
							}
							if err := tx.Rollback(); err != nil {
								t.Error(err)
							}
							break
						}
						retry := errors.Is(err, idempotency.ErrRetryTx)
						if number == 1205 {
							retry = retry || errors.Is(err, idempotency.ErrInProgress) // whoever has the row
						}
						if !retry || errors.Is(err, idempotency.ErrStaleFence) {
							t.Errorf("%s: %v, want ErrRetryTx", when, err)
						}
						s.nothingRemains(t, when, tx)
					}
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestOnceTx_deadlock_J1 has the server choose the caller's transaction in a real
// deadlock.
func TestOnceTx_deadlock_J1(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		s.Exec(t, "INSERT INTO stock VALUES (2, 10)")
		s.Exec(t, "CREATE TABLE weight (id INT PRIMARY KEY)")
		heavy, err := s.Admin.BeginTx(t.Context(), nil) // it has written more, so it is not chosen
		if err != nil {
			t.Fatal(err)
		}
		values := "INSERT INTO weight VALUES (0)"
		for i := range 200 {
			values += fmt.Sprintf(", (%d)", i+1)
		}
		for _, statement := range []string{values, "UPDATE stock SET n = n - 1 WHERE id = 2"} {
			if _, err := heavy.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		tx := s.sell(t) // has id 1
		waited := make(chan error, 1)
		_, err = g.OnceTx(t.Context(), tx, nil, buy("order"), func(ctx context.Context) ([]byte, error) {
			go func() {
				_, err := heavy.ExecContext(context.Background(), "UPDATE stock SET n = n + 0, id = id WHERE id = 1")
				waited <- err
			}()
			_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 2")
			return nil, err
		})
		server, answered := errors.AsType[*mysql.MySQLError](err)
		if !errors.Is(err, idempotency.ErrRetryTx) || !answered || server.Number != 1213 {
			t.Errorf("once: %v, want ErrRetryTx with the server's 1213", err)
		}
		if err := errors.Join(<-waited, heavy.Rollback()); err != nil {
			t.Errorf("the other transaction: %v", err)
		}
		s.nothingRemains(t, "deadlock", tx)
	})
}

// TestTx_snapshot has a lease renewed after the snapshot of the caller's transaction,
// where MariaDB takes a write to what has changed since for a conflict.
func TestTx_snapshot(t *testing.T) {
	t.Parallel()
	s := newShop(t, stack.MariaDB, "")
	s.guardTables(t)
	if s.Count(t, "SELECT COUNT(*) FROM information_schema.system_variables WHERE variable_name = 'innodb_snapshot_isolation'") == 0 {
		t.Log("this server is older than the conflict")
		return
	}
	dsn := tiers.WithParameters(s.business, isolationParameter(stack.MariaDB, "REPEATABLE-READ")+"&innodb_snapshot_isolation=1")
	g := s.newGuard(t, s.pool(t, dsn))
	db := s.pool(t, dsn)
	lease := s.acquire(t, s.locker)
	begin := func() *sql.Tx {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		var n int
		if err := tx.QueryRowContext(t.Context(), "SELECT n FROM stock").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	check := func(what string, tx *sql.Tx, err error) {
		server, answered := errors.AsType[*mysql.MySQLError](err)
		if !errors.Is(err, idempotency.ErrRetryTx) || !answered || server.Number != 1020 {
			t.Errorf("%s: %v, want ErrRetryTx with the server's 1020", what, err)
		}
		if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("%s: commit: %v, want ErrTxDone", what, err)
		}
	}

	tx := begin()
	if _, err := tx.ExecContext(t.Context(), "UPDATE stock SET n = n - 1 WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	if err := lease.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("ConfirmTx", tx, idempotency.ConfirmTx(t.Context(), tx, lease))
	s.unchanged(t)

	tx = begin()
	if _, err := g.Once(t.Context(), lease, buy("order"), sale); err != nil { // at READ COMMITTED
		t.Fatal(err)
	}
	_, err := g.OnceTx(t.Context(), tx, lease, buy("order"), func(context.Context) ([]byte, error) { return nil, errors.New("run again") })
	check("OnceTx of an answer after the snapshot", tx, err)
	s.stock(t, 9)
	s.completed(t, 1)
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOnce_rolledBack_repeats has the server fail one of its statements three times,
// which Once makes good, and four times, which it does not.
func TestOnce_rolledBack_repeats(t *testing.T) {
	for i, statement := range []string{"INSERT INTO `idempotency`", "UPDATE stock", "SELECT n FROM stock", "SET state = ?, result", "SET guard = guard + 1", "COMMIT"} {
		t.Run(statement, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				numbers := rolledBack
				if !soak {
					numbers = numbers[i%len(numbers):][:1]
				}
				for _, number := range numbers {
					for failures := 3; failures <= 4; failures++ {
						s.repeats(t, number, statement, failures)
					}
				}
			})
		})
	}
}

// repeats fails a statement so often.
func (s *shop) repeats(t *testing.T, number uint16, statement string, failures int) {
	t.Helper()
	if number == 1205 && strings.HasPrefix(statement, "INSERT") {
		return // somebody has the row: it is looked at again
	}
	g := s.guard(t)
	lease := s.acquire(t, s.locker)
	var failed atomic.Int64
	runs := 0
	s.proxy.OnRequest(func(r stack.Request) stack.Action {
		if at(r, statement) && failed.Add(1) <= int64(failures) {
			return stack.SQLError(number, "injected")
		}
		return stack.Pass
	})
	_, err := g.Once(t.Context(), lease, buy("order"), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
		runs++
		return sale(ctx, tx)
	})
	s.proxy.OnRequest(nil)
	want := 4
	if strings.HasPrefix(statement, "INSERT") {
		want -= failures // before the write
	}
	if failed.Load() < int64(failures) || runs != want {
		t.Errorf("%d, %d times: failed %d times, the write was run %d times, want %d", number, failures, failed.Load(), runs, want)
	}
	if failures == 4 {
		if !errors.Is(err, idempotency.ErrRetryTx) {
			t.Errorf("%d, 4 times: %v, want ErrRetryTx", number, err)
		}
		s.unchanged(t)
	} else {
		if err != nil {
			t.Errorf("%d, 3 times: %v", number, err)
		}
		s.stock(t, 9)
		s.completed(t, 1)
		s.restock(t, 10)
		s.Exec(t, "DELETE FROM idempotency")
	}
	idle(t, s.db)
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
