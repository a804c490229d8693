// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/internal/sqltx"
)

// Tx is a transaction of the business database, as *sql.Tx, *sqlx.Tx and
// GORM's ConnPool are.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// usable refuses, without I/O, what is certainly no transaction.
func usable(tx Tx) error { return asOurs(sqltx.Refuse(tx)) }

// inTransaction refuses what is no transaction: the confirmation would be
// committed alone, and prove nothing of the writes before it.
func inTransaction(ctx context.Context, tx Tx, op, key string) error {
	err := asOurs(sqltx.Ask(ctx, tx))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoTx):
		return fmt.Errorf("%s %q: %w", op, key, err)
	}
	return failed(ctx, tx, op, key, err)
}

func asOurs(err error) error {
	switch {
	case errors.Is(err, sqltx.ErrNil):
		return ErrNilTx
	case errors.Is(err, sqltx.ErrPool), errors.Is(err, sqltx.ErrNone):
		return fmt.Errorf("%w: %w", ErrNoTx, err)
	}
	return err
}

func isAnswer(err error, number uint16) bool { return sqltx.Answered(err, number) }

func rollback(ctx context.Context, tx Tx) { sqltx.Rollback(ctx, tx) }
