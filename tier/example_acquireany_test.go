// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// The stock of a hot product lies in sixteen pieces, so that sixteen customers
// are served at once. Each takes the first piece that is free; the product is
// sold out when every piece has been found empty.
func ExampleLocker_AcquireAny() {
	t := new(exampleT)
	defer t.end()
	locker, ctx := tiertest.NewLocker(t, tier.WithWait(time.Minute)), context.Background()

	pieces := tier.Segments("inventory/sku-1", 16)
	stock := make(map[string]*int) // guarded by the lock of its piece
	for _, piece := range pieces {
		two := 2
		stock[piece] = &two
	}
	buy := func() (bool, error) {
		left := slices.Clone(pieces)
		for len(left) > 0 {
			lease, err := locker.AcquireAny(ctx, left...)
			if err != nil {
				return false, err
			}
			piece := lease.Key()
			sold := *stock[piece] > 0
			if sold {
				*stock[piece]--
			}
			if err := lease.Release(ctx); err != nil {
				return false, err
			}
			if sold {
				return true, nil
			}
			left = slices.DeleteFunc(left, func(key string) bool { return key == piece })
		}
		return false, nil
	}

	var sold, turnedAway atomic.Int64
	var customers sync.WaitGroup
	for range 40 {
		customers.Go(func() {
			switch ok, err := buy(); {
			case err != nil:
				fmt.Println(err)
			case ok:
				sold.Add(1)
			default:
				turnedAway.Add(1)
			}
		})
	}
	customers.Wait()
	fmt.Println("sold:", sold.Load(), "turned away:", turnedAway.Load())
	// Output:
	// sold: 32 turned away: 8
}
