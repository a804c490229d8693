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

// Every pod starts the job on the hour, by a clock of its own, and one runs it:
// the key stays taken for most of the period, even after a run that was short.
func ExampleWithMinHold() {
	authority := tiertest.NewAuthority() // what the pods share; jobs need no filter
	for pod := range 3 {
		locker, err := tier.New(nil, authority.Join())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("pod %d: %s\n", pod, hourly(locker))
		if err := locker.Close(context.Background()); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// pod 0: done
	// pod 1: another runs it
	// pod 2: another runs it
}

func hourly(locker *tier.Locker) string {
	ctx := context.Background()
	lease, err := locker.TryAcquire(ctx, "job/hourly-report",
		tier.WithMinHold(50*time.Minute), // less than the period, more than the pods' clocks differ
		tier.WithMaxHold(40*time.Minute), // the job's own bound: the default is 5 minutes
	)
	if errors.Is(err, tier.ErrHeld) {
		return "another runs it"
	}
	if err != nil {
		return err.Error()
	}
	// ... the job, under lease.Context() ...
	if err := lease.Release(ctx); err != nil {
		return err.Error()
	}
	return "done"
}
