// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// Do releases however its function ends, and hands it a context that ends when
// the lease does.
func ExampleLocker_Do() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t), context.Background()
	errBroke := errors.New("account is empty")

	err := locker.Do(ctx, "payment/acct-42", func(ctx context.Context, lease *tier.Lease) error {
		fmt.Println("charging under", lease.Key())
		return errBroke // pass ctx on to all that is done here
	})
	fmt.Println(errors.Is(err, errBroke))

	lease, err := locker.TryAcquire(ctx, "payment/acct-42")
	fmt.Println("free again:", err == nil)
	if err == nil {
		_ = lease.Release(ctx)
	}
	// Output:
	// charging under payment/acct-42
	// true
	// free again: true
}
