// SPDX-License-Identifier: Apache-2.0

package mysqlauth_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/tierlock/tierlock/mysqlauth"
)

// A clean-up that one process at a time does, and that does no harm when two do it.
func ExampleNamedLocks() {
	cleanUp := func(ctx context.Context, db *sql.DB, work func(context.Context) error) error {
		locks, err := mysqlauth.NewNamedLocks(db, mysqlauth.WithNamedNamespace("shop"))
		if err != nil {
			return err
		}
		lock, err := locks.TryAcquire(ctx, "clean-up")
		if errors.Is(err, mysqlauth.ErrNamedHeld) {
			return nil // another is at it
		}
		if err != nil {
			return err
		}
		return errors.Join(work(lock.Context()), lock.Release(ctx))
	}
	_ = cleanUp
}
