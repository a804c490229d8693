// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestInstantOf(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-time.Hour, 0, time.Hour} {
		before := now()
		got := instantOf(time.Now().Add(d))
		after := now()
		// The two readings of the clock may be taken on two processors.
		if got < before.add(d-10*time.Microsecond) || got > after.add(d+10*time.Microsecond) {
			t.Errorf("%v from now is %v off", d, got.sub(before.add(d)))
		}
	}
}
