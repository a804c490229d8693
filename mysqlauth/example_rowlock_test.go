// SPDX-License-Identifier: Apache-2.0

package mysqlauth_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/tierlock/tierlock/mysqlauth"
)

// A report that one process at a time may book, in the transaction that books it.
func ExampleRowLock() {
	book := func(ctx context.Context, db *sql.DB, reports *mysqlauth.RowLock, month string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		switch err := reports.TryLock(ctx, tx, "report/"+month); {
		case errors.Is(err, mysqlauth.ErrRowBusy):
			return nil // another is at it
		case err != nil:
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO booking SELECT * FROM staged WHERE month = ?", month); err != nil {
			return err
		}
		return tx.Commit() // and the lock's end
	}
	start := func(ctx context.Context, db *sql.DB) (*mysqlauth.RowLock, error) {
		reports, err := mysqlauth.NewRowLock(ctx, db)
		if err != nil {
			return nil, err
		}
		return reports, reports.Prepare(ctx, "report/2026-11", "report/2026-12")
	}
	_, _ = book, start
}
