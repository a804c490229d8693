// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// A transfer needs both accounts. Transfers in opposite directions do not
// deadlock, whatever order they name the accounts in.
func ExampleLocker_AcquireAll() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t, tier.WithWait(time.Minute)), context.Background()

	alice, bob := 1000, 1000
	transfer := func(from, to string, cents int, debit, credit *int) {
		leases, err := locker.AcquireAll(ctx, "account/"+from, "account/"+to)
		if err != nil {
			fmt.Println(err) // neither is held
			return
		}
		defer func() { _ = leases.Release(ctx) }()
		*debit -= cents
		*credit += cents
	}

	var transfers sync.WaitGroup
	for range 10 {
		transfers.Go(func() { transfer("alice", "bob", 30, &alice, &bob) })
		transfers.Go(func() { transfer("bob", "alice", 10, &bob, &alice) })
	}
	transfers.Wait()
	fmt.Println("alice:", alice, "bob:", bob)
	// Output:
	// alice: 800 bob: 1200
}
