// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	s := time.Second
	for _, c := range []struct {
		fault  string
		length time.Duration
		steps  []step
		faults int
	}{
		{faultNone, 10 * s, nil, 0},
		{faultRedisKill, 10 * s, []step{{3 * s, killRedis}, {6 * s, reviveRedis}}, 1},
		{faultRedisFlush, 2 * s, []step{{400 * time.Millisecond, flushRedis}, {900 * time.Millisecond, flushRedis}, {1400 * time.Millisecond, flushRedis}}, 3},
		{faultHolderPause, 10 * s, []step{{2 * s, stopHolder}, {5500 * time.Millisecond, stopHolder}}, 2},
	} {
		steps := plan(c.fault, c.length)
		if !slices.Equal(steps, c.steps) || faults(steps) != c.faults {
			t.Errorf("%s over %v: %v, %d faults", c.fault, c.length, steps, faults(steps))
		}
	}
	if n := faults(plan(faultRedisFlush, 10*s)); n != 13 {
		t.Errorf("redis-flush over 10 s: %d faults, want 13", n)
	}
}

// A run of the shortest length that is allowed has room for both stops.
func TestPlan_pauseRoom(t *testing.T) {
	t.Parallel()
	ttl := time.Second
	length := pauseRoom * ttl
	stopped := time.Duration(pauseTTLs * float64(ttl))
	steps := plan(faultHolderPause, length)
	if steps[0].at+stopped > steps[1].at || steps[1].at+stopped > length {
		t.Errorf("stops of %v at %v and %v do not fit into %v", stopped, steps[0].at, steps[1].at, length)
	}
}
