// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// On shutdown nobody is let in any more, and who holds a lease may finish.
func ExampleLocker_Close() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t, tier.WithDrain(time.Minute)), context.Background()

	lease, err := locker.Acquire(ctx, "payment/acct-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // what the platform gives
		defer cancel()
		closed <- locker.Close(ctx)
	}()

	_, err = locker.Acquire(ctx, "payment/acct-42", tier.WithWait(time.Minute))
	fmt.Println("who waited is told:", errors.Is(err, tier.ErrClosed))
	fmt.Println("who holds goes on:", lease.Err() == nil)
	fmt.Println("released:", lease.Release(ctx))
	fmt.Println("closed:", <-closed)
	// Output:
	// who waited is told: true
	// who holds goes on: true
	// released: <nil>
	// closed: <nil>
}
