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
		if got < before.add(d) || got > after.add(d) {
			t.Errorf("%v from now is %v off", d, got.sub(before.add(d)))
		}
	}
}
