// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

func ExampleLadder_Next() {
	payment := fallback.Ladder{fallback.Retry, fallback.FailClosed}
	inventory := fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed}
	for _, s := range []fallback.Situation{
		{Health: breaker.Closed},
		{Health: breaker.Closed, Faulted: true, Retryable: true},
		{Health: breaker.Partial, LocalLeft: 30 * time.Second},
		{Health: breaker.Partial},
		{Health: breaker.Global, LocalLeft: 30 * time.Second},
	} {
		fmt.Println(payment.Next(s), inventory.Next(s))
	}
	// Output:
	// none none
	// retry retry
	// fail_closed local
	// fail_closed fail_closed
	// fail_closed fail_closed
}

func ExampleReentrantMutex() {
	var m fallback.ReentrantMutex
	mine, theirs := driver.NewToken(), driver.NewToken()
	if err := m.Lock(context.Background(), "sku-1", mine, time.Minute); err != nil {
		fmt.Println(err)
		return
	}
	err := m.TryLock("sku-1", theirs, time.Minute)
	fmt.Println(errors.Is(err, fallback.ErrHeld), m.TryLock("sku-1", mine, time.Minute), m.HoldCount("sku-1", mine))
	fmt.Println(m.Unlock("sku-1", mine), m.Unlock("sku-1", mine), m.Unlock("sku-1", mine))
	// Output:
	// true <nil> 2
	// <nil> <nil> fallback: not held
}
