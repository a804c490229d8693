// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// Functions that lock for themselves may call each other: under a lease's
// context its key is entered again, and is free when the last has left.
func ExampleLease_Context() {
	t := new(exampleT)
	defer t.end()
	locker := tiertest.NewLocker(t)

	charge := func(ctx context.Context) error {
		return locker.Do(ctx, "account/alice", func(_ context.Context, lease *tier.Lease) error {
			fmt.Println("charge holds", lease.Key())
			return nil
		})
	}

	lease, err := locker.Acquire(context.Background(), "account/alice")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := charge(lease.Context()); err != nil { // another context would wait for us
		fmt.Println(err)
	}
	fmt.Println("still held:", lease.Err() == nil)
	fmt.Println(lease.Release(context.Background()))
	// Output:
	// charge holds account/alice
	// still held: true
	// <nil>
}
