// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
)

// versionedStock gives the stock a version, at 1.
func (s *shop) versionedStock(t *testing.T, db *sql.DB, opts ...idempotency.VersionedOption) *idempotency.Versioned {
	t.Helper()
	s.Exec(t, "ALTER TABLE stock ADD v BIGINT UNSIGNED NOT NULL DEFAULT 1")
	return s.versioned(t, db, opts...)
}

func (s *shop) versioned(t *testing.T, db *sql.DB, opts ...idempotency.VersionedOption) *idempotency.Versioned {
	t.Helper()
	v, err := idempotency.NewVersioned(db, s.Database.Name+".stock", "id", "v", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// decrement loses updates unless somebody watches.
func decrement(ctx context.Context, tx *sql.Tx) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = 1").Scan(&n); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "UPDATE stock SET n = ? WHERE id = 1", n-1)
	return err
}

// TestVersioned_decrements has 64 take one each, whatever the sessions' isolation is
// and however affected rows are counted: none is lost.
func TestVersioned_decrements(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		for i, isolation := range []string{"READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
			t.Run(fmt.Sprintf("%v/%s", engine, isolation), func(t *testing.T) {
				t.Parallel()
				dialect := isolationParameter(engine, isolation) + fmt.Sprintf("&clientFoundRows=%v&interpolateParams=%v", i%2 == 0, i%2 == 1)
				s := newShop(t, engine, dialect)
				s.db.SetMaxOpenConns(32)
				s.restock(t, 100)
				v := s.versionedStock(t, s.db, idempotency.WithAttempts(20))
				var conflicts, runs atomic.Int64
				var callers sync.WaitGroup
				for range 64 {
					callers.Go(func() {
						for {
							err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
								runs.Add(1)
								return decrement(ctx, tx)
							})
							if errors.Is(err, idempotency.ErrConflict) {
								conflicts.Add(1)
								continue
							}
							if err != nil {
								t.Errorf("update: %v", err)
							}
							return
						}
					})
				}
				callers.Wait()
				s.stock(t, 36)
				if n := s.Count(t, "SELECT v FROM stock WHERE id = 1"); n != 65 {
					t.Errorf("version %d, want 65", n)
				}
				if runs.Load() == 64 {
					t.Error("nobody was in anybody's way: it proves nothing")
				}
				t.Logf("%d runs, %d conflicts", runs.Load(), conflicts.Load())
			})
		}
	}
}

func TestVersioned_conflict(t *testing.T) {
	countingBothWays(t, func(t *testing.T, s *shop) {
		v := s.versionedStock(t, s.db, idempotency.WithAttempts(3))
		runs := 0
		err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
			runs++
			s.Exec(t, "UPDATE stock SET v = v + 1 WHERE id = 1") // somebody else, each time
			return decrement(ctx, tx)
		})
		if !errors.Is(err, idempotency.ErrConflict) || runs != 3 || idempotency.HTTPStatus(err) != 409 {
			t.Errorf("%d runs, status %d, %v", runs, idempotency.HTTPStatus(err), err)
		}
		s.stock(t, 10)
		first := true
		if err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
			if first {
				first = false
				s.Exec(t, "UPDATE stock SET v = v + 1, n = 20 WHERE id = 1")
			}
			return decrement(ctx, tx)
		}); err != nil {
			t.Error(err)
		}
		s.stock(t, 19)
		failure := errors.New("no")
		if err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(decrement(ctx, tx), failure)
		}); !errors.Is(err, failure) {
			t.Error(err)
		}
		if err := v.Update(t.Context(), 2, decrement); !errors.Is(err, idempotency.ErrNoRow) || idempotency.HTTPStatus(err) != 404 {
			t.Errorf("no row: %v", err)
		}
		s.stock(t, 19)
		s.noneOpen(t)
	})
}

// TestVersioned_largeVersions: those that are equal as floating-point numbers are not.
func TestVersioned_largeVersions(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		for _, way := range []string{"", "interpolateParams=true"} {
			db := s.pool(t, tiers.WithParameters(s.business, way))
			if way == "" {
				s.versionedStock(t, db)
			}
			v := s.versioned(t, db, idempotency.WithAttempts(1))
			s.Exec(t, "UPDATE stock SET n = 10, v = 9007199254740992")
			if err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
				s.Exec(t, "UPDATE stock SET v = v + 1 WHERE id = 1")
				return decrement(ctx, tx)
			}); !errors.Is(err, idempotency.ErrConflict) {
				t.Errorf("%q: %v", way, err)
			}
			s.stock(t, 10)
		}
	})
}

// TestVersioned_repeats what the server has rolled back, and what was lost before
// COMMIT.
func TestVersioned_repeats(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		v := s.versionedStock(t, s.db)
		cut := s.proxy.LoseReply(1, func(r stack.Request) bool { return strings.Contains(r.Text, "UPDATE stock SET n") }, stack.HangUp)
		runs := 0
		if err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
			runs++
			return decrement(ctx, tx)
		}); err != nil || runs != 2 {
			t.Errorf("%d runs, %v", runs, err)
		}
		<-cut
		s.stock(t, 9)
		for _, state := range []string{"40001", "HY000"} {
			runs = 0
			if err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
				if err := decrement(ctx, tx); err != nil {
					return err
				}
				if runs++; runs == 1 {
					_, err := tx.ExecContext(ctx, "SIGNAL SQLSTATE '"+state+"' SET MYSQL_ERRNO = 1213")
					return fmt.Errorf("wrapped: %w", err)
				}
				return nil
			}); err != nil || runs != 2 {
				t.Errorf("%s: %d runs, %v", state, runs, err)
			}
		}
		s.stock(t, 7)
	})
}

// TestVersioned_transactionEnded: a change that ends its transaction, or goes on after
// the server has, is told so.
func TestVersioned_transactionEnded(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		v := s.versionedStock(t, s.db)
		for _, end := range []string{"ROLLBACK", "COMMIT"} {
			if err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, end)
				return err
			}); !errors.Is(err, idempotency.ErrTxDone) {
				t.Errorf("%s: %v", end, err)
			}
		}
		if n := s.Count(t, "SELECT v FROM stock WHERE id = 1"); n != 1 {
			t.Errorf("version %d, want 1", n)
		}
	})
}

// TestVersioned_commitUnknown_J7 loses the reply to COMMIT: that is said, and nothing
// is tried again.
func TestVersioned_commitUnknown_J7(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		v := s.versionedStock(t, s.db)
		lost := s.proxy.LoseReply(1, isCommit, stack.HangUp)
		runs := 0
		err := v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
			runs++
			return decrement(ctx, tx)
		})
		if !errors.Is(err, idempotency.ErrUnknown) || runs != 1 {
			t.Errorf("%d runs, %v", runs, err)
		}
		<-lost
		s.stock(t, 9)
	})
}

func TestVersioned_panic(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		s.db.SetMaxOpenConns(1)
		v := s.versionedStock(t, s.db)
		func() {
			defer func() { _ = recover() }()
			_ = v.Update(t.Context(), 1, func(ctx context.Context, tx *sql.Tx) error {
				_ = decrement(ctx, tx)
				panic("no")
			})
		}()
		s.stock(t, 10)
		ctx, cancel := context.WithCancel(t.Context())
		if err := v.Update(ctx, 1, func(ctx context.Context, tx *sql.Tx) error {
			defer cancel()
			return decrement(ctx, tx)
		}); !errors.Is(err, context.Canceled) || errors.Is(err, idempotency.ErrUnknown) {
			t.Errorf("cancelled before COMMIT: %v", err)
		}
		s.stock(t, 10)
		if err := v.Update(t.Context(), 1, decrement); err != nil {
			t.Error(err)
		}
		s.stock(t, 9)
	})
}

func TestNewVersioned_invalid(t *testing.T) {
	db := &sql.DB{}
	for _, c := range []struct {
		db                  *sql.DB
		table, key, version string
		attempts            int
	}{
		{nil, "t", "k", "v", 5},
		{db, "", "k", "v", 5},
		{db, "t", "", "v", 5},
		{db, "t", "k", "", 5},
		{db, "t", "k", "K", 5},
		{db, "a.b.c", "k", "v", 5},
		{db, ".t", "k", "v", 5},
		{db, "a.", "k", "v", 5},
		{db, "t`; DROP TABLE x", "k", "v", 5},
		{db, "t", "k`", "v", 5},
		{db, "t", "k", strings.Repeat("v", 65), 5},
		{db, "t", "k", "v", 0},
		{db, "t", "k", "v", 101},
	} {
		if _, err := idempotency.NewVersioned(c.db, c.table, c.key, c.version, idempotency.WithAttempts(c.attempts)); !errors.Is(err, idempotency.ErrOption) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A price is changed from what it is now. Whoever was faster is taken account of.
func ExampleVersioned() {
	raise := func(ctx context.Context, db *sql.DB, sku int) error {
		prices, err := idempotency.NewVersioned(db, "price", "sku", "version")
		if err != nil {
			return err
		}
		return prices.Update(ctx, sku, func(ctx context.Context, tx *sql.Tx) error {
			var cents int64
			if err := tx.QueryRowContext(ctx, "SELECT cents FROM price WHERE sku = ?", sku).Scan(&cents); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE price SET cents = ? WHERE sku = ?", cents+cents/10, sku)
			return err
		})
	}
	_ = raise
}
