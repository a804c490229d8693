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

// A call that hangs must not hold its key for ever. At the bound the lease's
// context ends, and with it all that was given the context.
func ExampleWithMaxHold() {
	t := new(exampleT)
	defer t.end()
	locker := tiertest.NewLocker(t)

	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	err := locker.Do(context.Background(), "report/monthly", func(ctx context.Context, _ *tier.Lease) error {
		return hang(ctx)
	}, tier.WithMaxHold(50*time.Millisecond))
	fmt.Println(errors.Is(err, tier.ErrMaxHold))
	// Output:
	// true
}
