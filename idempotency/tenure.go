// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/tier"
)

// Tx is a transaction of the business database, as *sql.Tx, *sqlx.Tx and
// GORM's ConnPool are.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// confirm writes the lease row. It writes because a lock alone is no fence: on
// Galera and on multi-primary Group Replication only written rows are
// certified. The unchanged token proves an unbroken tenure since the grant.
const confirm = `UPDATE %s SET guard = guard + 1
WHERE lock_key = ? AND token = ? AND fence >= ? AND expires_at > UTC_TIMESTAMP(6)`

// ConfirmTx proves, inside tx, that the lease's tenure still holds, and keeps it
// so until tx ends: nobody can be granted the key before COMMIT or ROLLBACK has
// released the row. Call it last, immediately before COMMIT, so that the row is
// locked for one round trip and tx cannot deadlock with renewals; with several
// leases, in the order of their keys.
//
// What is certainly no transaction is refused with [ErrNoTx]. A tx with the
// methods Commit and Rollback is taken for one. Of anything else (a *sql.Conn, a
// wrapper) the server is asked, which takes two round trips; begin by hand on a
// connection before. It cannot be told that a tx has the methods of a transaction
// and is none, that a connection's transaction is another than the caller thinks,
// or that a statement before has ended it silently, as DDL does.
//
// The lease table must be reachable from tx's connection (same server), by a
// user with SELECT and UPDATE on it.
//
// Errors: [ErrNoTx], [ErrStaleFence], [ErrUnfenced], [ErrWrongDB], [ErrRetryTx] (tx was
// rolled back: inside a transaction nothing can be retried), the context's.
// After any of them tx must not be committed.
func ConfirmTx(ctx context.Context, tx Tx, lease *tier.Lease) error {
	if _, pool := tx.(interface{ SetMaxOpenConns(int) }); pool {
		return fmt.Errorf("%w: confirm %q", ErrNoTx, lease.Key())
	}
	if lease.Fence() == 0 {
		return fmt.Errorf("%w: %q was granted at level %s", ErrUnfenced, lease.Key(), lease.Level())
	}
	tenure, err := lease.Prove()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStaleFence, err)
	}
	if tenure.Table == "" {
		return fmt.Errorf("%w: the authority of %q keeps no lease table", ErrWrongDB, lease.Key())
	}
	if err := inTransaction(ctx, tx, lease.Key()); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, fmt.Sprintf(confirm, tenure.Table), []byte(tenure.Key), tenure.Token[:], tenure.Fence)
	if err != nil {
		return failed(ctx, tx, lease.Key(), err)
	}
	// guard changes with every match, so this is 1 with and without
	// CLIENT_FOUND_ROWS.
	n, err := result.RowsAffected()
	if err != nil {
		return failed(ctx, tx, lease.Key(), err)
	}
	if n != 1 {
		return fmt.Errorf("%w: %q, fence %d: the authority no longer has this tenure; roll back", ErrStaleFence, lease.Key(), tenure.Fence)
	}
	return nil
}

// failed says what an error inside the transaction means for all of it. After
// some of them the server has dropped the transaction while the session goes on
// in autocommit, where a later statement would be committed alone; so whatever
// went wrong, tx is rolled back here.
func failed(ctx context.Context, tx Tx, key string, err error) error {
	rollback(ctx, tx)
	server, answered := errors.AsType[*mysql.MySQLError](err)
	switch {
	case ctx.Err() != nil, errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("confirm %q: %w", key, err)
	case !answered: // the connection is gone, and the transaction with it
		return fmt.Errorf("%w: confirm %q: %w", ErrRetryTx, key, err)
	}
	if server.SQLState == rollbackState {
		return fmt.Errorf("%w: confirm %q: %w", ErrRetryTx, key, err)
	}
	switch server.Number {
	case 1213, 1205, 1020, 3572, 3101: // deadlock, lock wait, snapshot conflict, NOWAIT, failed certification
		return fmt.Errorf("%w: confirm %q: %w", ErrRetryTx, key, err)
	case 1146, 1049, 1142, 1143, 1054: // no table, no database, no right, no column
		return fmt.Errorf("%w: confirm %q: %w; the lease table must be on the transaction's server, and its user needs SELECT and UPDATE on it", ErrWrongDB, key, err)
	}
	return fmt.Errorf("confirm %q: %w", key, err)
}

// rollbackState is the SQLSTATE of every "transaction rolled back, try again".
var rollbackState = [5]byte{'4', '0', '0', '0', '1'}

// rollbackLimit bounds a rollback by statement on a server that says nothing.
const rollbackLimit = time.Second

// rollback ends tx as far as its type allows; a broken connection has ended it
// already, so its error says nothing.
func rollback(ctx context.Context, tx Tx) {
	if r, ok := tx.(interface{ Rollback() error }); ok {
		_ = r.Rollback()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
	defer cancel()
	_, _ = tx.ExecContext(ctx, "ROLLBACK")
}
