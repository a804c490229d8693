// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// A transfer proves both tenures, in the order of their keys, so that two
// transfers cannot deadlock there either.
func ExampleConfirmTx_twoAccounts() {
	transfer := func(ctx context.Context, locker *tier.Locker, db *sql.DB, from, to string, cents int64) error {
		keys := []string{"account/" + from, "account/" + to}
		return locker.DoAll(ctx, keys, func(ctx context.Context, leases tier.Leases) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // does nothing after a commit
			const add = "UPDATE account SET cents = cents + ? WHERE id = ?"
			if _, err := tx.ExecContext(ctx, add, -cents, from); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, add, cents, to); err != nil {
				return err
			}
			slices.SortFunc(leases, func(a, b *tier.Lease) int { return cmp.Compare(a.Key(), b.Key()) })
			for _, lease := range leases {
				if err := idempotency.ConfirmTx(ctx, tx, lease); err != nil {
					return err
				}
			}
			return tx.Commit()
		})
	}
	_ = transfer
}
