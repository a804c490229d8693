// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// A sale, with all that can come of it. Only what is known to have written
// nothing is tried again: an error of Commit itself may hide a success.
func ExampleConfirmTx() {
	sell := func(ctx context.Context, locker *tier.Locker, db *sql.DB, product int) error {
		var sold bool
		var err error
		for range 3 {
			err = locker.Do(ctx, "inventory/sku-1", func(ctx context.Context, lease *tier.Lease) error {
				err := takeOne(ctx, db, lease, product)
				for try := 1; try < 3 && errors.Is(err, idempotency.ErrRetryTx); try++ {
					err = takeOne(ctx, db, lease, product) // a deadlock, say: the whole transaction again
				}
				sold = err == nil
				return err
			})
			if sold {
				return nil // a lease that was lost after COMMIT is only news
			}
			if !errors.Is(err, idempotency.ErrStaleFence) {
				return err
			}
			// Another had the key meanwhile: begin anew, with a new lease and new reads.
		}
		return err
	}
	_ = sell
}

// takeOne is one transaction; it ends with the proof.
func takeOne(ctx context.Context, db *sql.DB, lease *tier.Lease, product int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	var stock int
	if err := tx.QueryRowContext(ctx, "SELECT stock FROM product WHERE id = ?", product).Scan(&stock); err != nil {
		return err
	}
	if stock == 0 {
		return errors.New("sold out")
	}
	if _, err := tx.ExecContext(ctx, "UPDATE product SET stock = ? WHERE id = ?", stock-1, product); err != nil {
		return err
	}
	if err := idempotency.ConfirmTx(ctx, tx, lease); err != nil {
		return err
	}
	return tx.Commit()
}
