// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// whole is the tenure of the grant: the unchanged token proves that it was
// unbroken since.
const whole = ` WHERE lock_key = ? AND token = ? AND fence >= ? AND expires_at > UTC_TIMESTAMP(6)`

const (
	// confirm writes the lease row. It writes because a lock alone is no fence:
	// on Galera and on multi-primary Group Replication only written rows are
	// certified.
	confirm = `UPDATE %s SET guard = guard + 1` + whole
	// release frees it as well.
	release = `UPDATE %s SET guard = guard + 1, token = NULL, expires_at = UTC_TIMESTAMP(6)` + whole
)

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
// Errors: [ErrNilTx], [ErrNoTx], [ErrTxDone], [ErrStaleFence], [ErrUnfenced],
// [ErrWrongDB], [ErrRetryTx] (tx was rolled back: inside a transaction nothing can
// be retried), the context's. After any of them tx must not be committed.
func ConfirmTx(ctx context.Context, tx Tx, lease *tier.Lease) error {
	return proveRow(ctx, tx, lease, "confirm", confirm, (*tier.Lease).Prove)
}

// ReleaseTx is ConfirmTx that frees the key with the same COMMIT: who waits for
// it may have it as soon as the write is seen. The tenure goes on until then.
// Release must still be called, after the end of tx: it wakes those who wait, and
// answers nil, also when tx was rolled back and it is Release that frees the key.
// A lease with a MinHold is refused with [tier.ErrOption].
//
// Errors: those of ConfirmTx.
func ReleaseTx(ctx context.Context, tx Tx, lease *tier.Lease) error {
	return proveRow(ctx, tx, lease, "release", release, (*tier.Lease).ProveFreeing)
}

func proveRow(ctx context.Context, tx Tx, lease *tier.Lease, op, statement string, prove func(*tier.Lease) (driver.Tenure, error)) error {
	if err := usable(tx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if lease == nil {
		return fmt.Errorf("%w: %s: lease is nil", ErrOption, op)
	}
	if err := provable(lease); err != nil {
		return err
	}
	if err := inTransaction(ctx, tx, op, lease.Key()); err != nil {
		return err
	}
	proved, err := prove(lease)
	if err != nil {
		return stale(err)
	}
	return writeRow(ctx, tx, lease, proved, op, statement)
}

// provable refuses, before any I/O, a lease that has no row.
func provable(lease *tier.Lease) error {
	switch {
	case lease.Fence() == 0:
		return unfenced(lease)
	case lease.Tenure().Table == "":
		return fmt.Errorf("%w: the authority of %q keeps no lease table", ErrWrongDB, lease.Key())
	}
	return nil
}

func unfenced(l *tier.Lease) error {
	return fmt.Errorf("%w: %q was granted at level %s", ErrUnfenced, l.Key(), l.Level())
}

func stale(err error) error { return fmt.Errorf("%w: %w", ErrStaleFence, err) }

// writeRow has the server judge a tenure.
func writeRow(ctx context.Context, tx Tx, lease *tier.Lease, proved driver.Tenure, op, statement string) error {
	result, err := tx.ExecContext(ctx, fmt.Sprintf(statement, proved.Table), []byte(proved.Key), proved.Token[:], proved.Fence)
	if err != nil {
		return failed(ctx, tx, op, lease.Key(), err)
	}
	// guard changes with every match, so this is 1 with and without
	// CLIENT_FOUND_ROWS.
	n, err := result.RowsAffected()
	if err != nil {
		return failed(ctx, tx, op, lease.Key(), err)
	}
	if n != 1 {
		return fmt.Errorf("%w: %q, fence %d: the authority no longer has this tenure; roll back", ErrStaleFence, lease.Key(), proved.Fence)
	}
	return nil
}

// failed says what an error inside the transaction means for all of it. After
// some of them the server has dropped the transaction while the session goes on
// in autocommit, where a later statement would be committed alone; so whatever
// went wrong, tx is rolled back here.
func failed(ctx context.Context, tx Tx, op, key string, err error) error {
	rollback(ctx, tx)
	err = fmt.Errorf("%s %q: %w", op, key, classify(ctx, err, ErrWrongDB))
	if errors.Is(err, ErrWrongDB) {
		return fmt.Errorf("%w; the lease table must be on the transaction's server, and its user needs SELECT and UPDATE on it", err)
	}
	return err
}
