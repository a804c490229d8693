// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// DoAll is Do for several keys. Its context ends with the first lease that does.
func ExampleLocker_DoAll() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t), context.Background()

	keys := []string{"order/7", "account/alice"}
	err := locker.DoAll(ctx, keys, func(_ context.Context, leases tier.Leases) error {
		for _, lease := range leases { // in the order of keys
			fmt.Println("holding", lease.Key())
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// holding order/7
	// holding account/alice
	// <nil>
}
