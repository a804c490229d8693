// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// Acquire waits for its turn. The lease is renewed in the background until it
// is released, in whatever goroutine.
func ExampleLocker_Acquire() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t), context.Background()

	first, err := locker.Acquire(ctx, "payment/acct-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	released := make(chan error, 1)
	go func() { released <- first.Release(ctx) }()

	second, err := locker.Acquire(ctx, "payment/acct-42", tier.WithWait(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("released:", <-released)
	fmt.Println("level:", second.Level())
	fmt.Println("higher fence:", second.Fence() > first.Fence())
	fmt.Println("released:", second.Release(ctx))
	// Output:
	// released: <nil>
	// level: full
	// higher fence: true
	// released: <nil>
}
