// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"

	"github.com/tierlock/tierlock/idempotency"
)

// A charge at a payment provider. A process that dies between the charge and its own
// books is followed by one that charges again under the same key, which the provider
// answers with the first charge.
func ExampleGuard_Reserve() {
	type provider interface {
		Charge(ctx context.Context, idempotencyKey string, cents int64) (receipt []byte, err error)
		Mail(ctx context.Context, idempotencyKey string, receipt []byte) error
	}
	charge := func(ctx context.Context, guard *idempotency.Guard, p provider, key string, cents int64) (idempotency.Result, error) {
		fingerprint, err := idempotency.Fingerprint("charge", cents)
		if err != nil {
			return idempotency.Result{}, err
		}
		return guard.Reserve(ctx, nil, idempotency.Request{Key: key, Fingerprint: fingerprint},
			idempotency.Step{
				Name: "charged",
				Call: func(ctx context.Context, c idempotency.Call) ([]byte, error) { return p.Charge(ctx, c.Key, cents) },
				Save: func(ctx context.Context, tx *sql.Tx, _ idempotency.Call, receipt []byte) ([]byte, error) {
					_, err := tx.ExecContext(ctx, "INSERT INTO charge (request, receipt) VALUES (?, ?)", key, receipt)
					return receipt, err
				},
			},
			idempotency.Step{
				Name: "mailed",
				Call: func(ctx context.Context, c idempotency.Call) ([]byte, error) {
					return c.Before, p.Mail(ctx, c.Key, c.Before)
				},
			})
	}
	_ = charge
}
