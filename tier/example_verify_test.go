// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// Before something that no transaction can take back, ask. The answer is as old
// as its way to us: what must never happen twice needs a guarded write.
func ExampleLease_Verify() {
	ctx, authority := context.Background(), tiertest.NewAuthority()
	locker, err := tier.New(nil, authority)
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := locker.Acquire(ctx, "payment/acct-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Verify(ctx))

	authority.Revoke() // an operator takes it away
	fmt.Println("lost:", errors.Is(lease.Verify(ctx), tier.ErrLost))
	fmt.Println("and its context has ended:", errors.Is(context.Cause(lease.Context()), tier.ErrLost))
	fmt.Println("nothing to release:", errors.Is(lease.Release(ctx), tier.ErrLost))
	fmt.Println(locker.Close(ctx))
	// Output:
	// <nil>
	// lost: true
	// and its context has ended: true
	// nothing to release: true
	// <nil>
}
