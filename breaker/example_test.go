// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/breaker"
)

func Example() {
	ping := func(context.Context) error { return nil } // asks the server
	health, err := breaker.New("mysql", breaker.Settings{ProbeEvery: 50 * time.Millisecond}, ping)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer health.Close()
	back := make(chan struct{})
	health.Listen(func(c breaker.Change) {
		fmt.Printf("%s: %v, was %v: %v\n", c.Tier, c.To, c.From, c.Cause)
		if c.To == breaker.Closed {
			close(back)
		}
	})

	for range 5 {
		health.Report(errors.New("connection refused"))
	}
	<-back
	fmt.Println(health.State(), health.RetryAfter())
	// Output:
	// mysql: partial, was closed: connection refused
	// mysql: closed, was partial: <nil>
	// closed 0s
}
