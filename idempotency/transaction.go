// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
)

// usable refuses what is certainly no transaction.
func usable(tx Tx) error {
	if tx == nil || reflect.ValueOf(tx).Kind() == reflect.Pointer && reflect.ValueOf(tx).IsNil() {
		return ErrNilTx
	}
	if _, pool := tx.(interface{ SetMaxOpenConns(int) }); pool {
		return ErrNoTx
	}
	return nil
}

// savepoint is a name that nobody else uses.
const savepoint = "tierlock_confirm"

// inTransaction refuses what is no transaction: the confirmation would be
// committed alone, and prove nothing of the writes before it.
//
// A savepoint outlives its statement only inside a transaction, with
// autocommit=0 and after BEGIN by hand too, so the server knows one whose type
// does not tell. Of a pool's connections it may be the first that has the
// savepoint and another that is asked for it, which gives the same answer.
func inTransaction(ctx context.Context, tx Tx, op, key string) error {
	if _, ends := tx.(interface {
		Commit() error
		Rollback() error
	}); ends {
		return nil
	}
	_, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
	}
	switch {
	case err == nil:
		return nil
	case isAnswer(err, 1305): // no such savepoint
		return fmt.Errorf("%w: %s %q: each statement is committed by itself", ErrNoTx, op, key)
	case !isAnswer(err, 1295): // cannot be prepared
		return failed(ctx, tx, op, key, err)
	case onPool(tx):
		return fmt.Errorf("%w: %s %q: it is a pool that prepares statements", ErrNoTx, op, key)
	}
	return nil // it cannot be told
}

// onPool reports that tx stands on a pool, as GORM's prepared statements outside
// a transaction do: inside one they have the methods that end it.
func onPool(tx Tx) bool {
	p, ok := tx.(interface{ GetDBConn() (*sql.DB, error) })
	if !ok {
		return false
	}
	db, err := p.GetDBConn()
	return err == nil && db != nil
}
