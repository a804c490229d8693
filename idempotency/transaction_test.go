// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/tierlock/tierlock/idempotency"
)

// bare hides all methods but those asked for, as a tracing wrapper does.
type bare struct{ idempotency.Tx }

// preparing prepares each statement before it runs, as GORM does when told to.
// Its transactions have the methods that end them besides.
type preparing struct {
	idempotency.Tx
	prepare func(context.Context, string) (*sql.Stmt, error)
	pool    *sql.DB
}

func (p preparing) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	statement, err := p.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	defer statement.Close() //nolint:errcheck // its result is there
	return statement.ExecContext(ctx, args...)
}

func (p preparing) GetDBConn() (*sql.DB, error) {
	if p.pool == nil {
		return nil, errors.New("no pool")
	}
	return p.pool, nil
}

type preparingTx struct {
	preparing
	tx *sql.Tx
}

func (p preparingTx) Commit() error   { return p.tx.Commit() }
func (p preparingTx) Rollback() error { return p.tx.Rollback() }

// manual has a transaction begun by hand on a connection of its own.
func manual(t *testing.T, s *shop, begin string) *sql.Conn {
	t.Helper()
	conn, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
		_, _ = conn.ExecContext(context.Background(), "SET autocommit = 1")
		_ = conn.Close()
	})
	if begin != "" {
		if _, err := conn.ExecContext(t.Context(), begin); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// TestConfirmTx_noTx refuses what would commit the confirmation by itself, and
// nothing that is a transaction.
func TestConfirmTx_noTx(t *testing.T) {
	for name, test := range map[string]struct {
		tx func(t *testing.T, s *shop) idempotency.Tx
		is bool
	}{
		"a pool":                {tx: func(_ *testing.T, s *shop) idempotency.Tx { return s.db }},
		"a wrapped pool":        {tx: func(_ *testing.T, s *shop) idempotency.Tx { return bare{s.db} }},
		"a connection":          {tx: func(t *testing.T, s *shop) idempotency.Tx { return manual(t, s, "") }},
		"a wrapped connection":  {tx: func(t *testing.T, s *shop) idempotency.Tx { return bare{manual(t, s, "")} }},
		"a pool that prepares":  {tx: func(_ *testing.T, s *shop) idempotency.Tx { return preparing{s.db, s.db.PrepareContext, s.db} }},
		"a transaction":         {tx: func(t *testing.T, s *shop) idempotency.Tx { return s.sell(t) }, is: true},
		"a wrapped transaction": {tx: func(t *testing.T, s *shop) idempotency.Tx { return bare{s.sell(t)} }, is: true},
		"a transaction that prepares": {is: true, tx: func(t *testing.T, s *shop) idempotency.Tx {
			tx := s.sell(t)
			return preparingTx{preparing{tx, tx.PrepareContext, s.db}, tx}
		}},
		"a connection that prepares": {is: true, tx: func(t *testing.T, s *shop) idempotency.Tx {
			conn := manual(t, s, "BEGIN")
			return preparing{conn, conn.PrepareContext, nil}
		}},
		"begun by hand": {is: true, tx: func(t *testing.T, s *shop) idempotency.Tx { return manual(t, s, "BEGIN") }},
		"autocommit=0":  {is: true, tx: func(t *testing.T, s *shop) idempotency.Tx { return manual(t, s, "SET autocommit = 0") }},
	} {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				lease := s.acquire(t, s.locker)
				t.Cleanup(func() { // after the transaction's end
					if err := lease.Release(context.Background()); err != nil {
						t.Errorf("release: %v", err)
					}
				})
				err := confirm(t, test.tx(t, s), lease)
				if test.is && err != nil || !test.is && !errors.Is(err, idempotency.ErrNoTx) {
					t.Errorf("confirm: %v; is a transaction: %v", err, test.is)
				}
				if n := s.Count(t, "SELECT guard FROM lease WHERE lock_key = ?", []byte(namespace+"/"+key)); n != 0 {
					t.Errorf("guard is %d: something was committed", n)
				}
			})
		})
	}
}
