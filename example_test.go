// SPDX-License-Identifier: Apache-2.0

package tierlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// One charge, from nothing to COMMIT. Both helpers end the program on an error;
// see the errors of package tier for what a service does instead.
func Example() {
	ctx, dsn := context.Background(), "shop:secret@tcp(127.0.0.1:3306)/shop"
	db := must(sql.Open("mysql", dsn))
	check(mysqlauth.EnsureSchema(ctx, db)) // once; or apply mysqlauth/schema.sql
	filter := must(redisfast.Open("redis://127.0.0.1:6379/0"))
	authority := must(mysqlauth.Open(dsn)) // a small pool of its own
	locker := must(tier.New(filter, authority, tier.WithNamespace("shop")))
	defer func() { check(locker.Close(ctx)) }()

	lease := must(locker.Acquire(ctx, "payment/acct-42")) // waits up to 3 s
	defer func() { check(lease.Release(ctx)) }()
	tx := must(db.BeginTx(lease.Context(), nil))
	must(tx.Exec("UPDATE account SET cents = cents - 500 WHERE id = 42"))
	check(idempotency.ConfirmTx(lease.Context(), tx, lease)) // last before COMMIT
	check(tx.Commit())
}

// A payment once per request: without the lock as well, and with it without a crowd.
func Example_oncePerRequest() {
	guard := must(idempotency.New(db, idempotency.WithNamespace("shop")))
	check(idempotency.EnsureSchema(ctx, db)) // once; or apply idempotency/migration
	what := must(idempotency.Fingerprint("pay", map[string]any{"account": 42, "cents": 500}))
	result := must(guard.Once(ctx, lease, idempotency.Request{Key: requestID, Fingerprint: what},
		func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			_, err := tx.ExecContext(ctx, "UPDATE account SET cents = cents - 500 WHERE id = 42")
			return []byte("paid"), err // the answer, now and for whoever asks again
		}))
	fmt.Printf("%s, again: %v\n", result.Body, result.Replayed)
}

// What the example above begins with: see the first one.
var (
	ctx       = context.Background()
	db        *sql.DB
	lease     *tier.Lease
	requestID string
)

// A service passes errors on. Do releases whatever happens inside it, and the
// context that it hands in ends when the lease is lost.
func Example_service() {
	charge := func(ctx context.Context, locker *tier.Locker, db *sql.DB, account string, cents int64) error {
		return locker.Do(ctx, "payment/"+account, func(ctx context.Context, lease *tier.Lease) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // does nothing after a commit
			if _, err := tx.ExecContext(ctx, "UPDATE account SET cents = cents - ? WHERE id = ?", cents, account); err != nil {
				return err
			}
			if err := idempotency.ConfirmTx(ctx, tx, lease); err != nil {
				return err
			}
			return tx.Commit()
		})
	}
	_ = charge
}

// Unit tests need no servers: NewLocker takes a *testing.T.
func Example_unitTest() {
	t := new(exampleT)
	defer t.end()

	locker, ctx := tiertest.NewLocker(t), context.Background()
	first := must(locker.Acquire(ctx, "payment/acct-42"))
	_, err := locker.TryAcquire(ctx, "payment/acct-42")
	fmt.Println("held:", errors.Is(err, tier.ErrHeld))

	check(first.Release(ctx)) // when it returns, this process may try again at once
	second := must(locker.TryAcquire(ctx, "payment/acct-42"))
	fmt.Println("higher fence:", second.Fence() > first.Fence())
	check(second.Release(ctx))
	// Output:
	// held: true
	// higher fence: true
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleT stands in for *testing.T, which an example does not have.
type exampleT struct{ cleanups []func() }

func (t *exampleT) Helper()                           {}
func (t *exampleT) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleT) end() {
	for _, f := range t.cleanups {
		f()
	}
}
