// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// TryAcquire is for callers with something better to do than to wait.
func ExampleLocker_TryAcquire() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t), context.Background()

	refresh := func() {
		lease, err := locker.TryAcquire(ctx, "cache/prices")
		switch {
		case errors.Is(err, tier.ErrHeld):
			fmt.Println("somebody refreshes it already")
			return
		case err != nil:
			fmt.Println(err)
			return
		}
		defer func() { _ = lease.Release(ctx) }()
		fmt.Println("refreshing")
	}

	other, err := locker.TryAcquire(ctx, "cache/prices")
	if err != nil {
		fmt.Println(err)
		return
	}
	refresh()
	if err := other.Release(ctx); err != nil {
		fmt.Println(err)
	}
	refresh()
	// Output:
	// somebody refreshes it already
	// refreshing
}
