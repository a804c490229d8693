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
		{faultMySQLPause, 10 * s, []step{{3 * s, pauseMySQL}, {6 * s, resumeMySQL}}, 1},
		{faultMySQLKill, 10 * s, []step{{3 * s, killMySQL}, {6 * s, reviveMySQL}}, 1},
		{faultHolderPause, 10 * s, []step{{2 * s, stopHolder}, {5500 * time.Millisecond, stopHolder}}, 2},
	} {
		steps := plan(options{fault: c.fault, duration: c.length})
		if !slices.Equal(steps, c.steps) || faults(steps) != c.faults {
			t.Errorf("%s over %v: %v, %d faults", c.fault, c.length, steps, faults(steps))
		}
	}
	if n := faults(plan(options{fault: faultRedisFlush, duration: 10 * s})); n != 13 {
		t.Errorf("redis-flush over 10 s: %d faults, want 13", n)
	}
}

// A run of the shortest length that is allowed has room for both stops.
func TestPlan_pauseRoom(t *testing.T) {
	t.Parallel()
	ttl := time.Second
	length := pauseRoom * ttl
	stopped := time.Duration(pauseTTLs * float64(ttl))
	steps := plan(options{fault: faultHolderPause, duration: length, ttl: ttl})
	if steps[0].at+stopped > steps[1].at || steps[1].at+stopped > length {
		t.Errorf("stops of %v at %v and %v do not fit into %v", stopped, steps[0].at, steps[1].at, length)
	}
}

// Every seed has each kind of fault, one at a time, and none of MySQL's right
// after one of Redis's.
func TestPlan_all(t *testing.T) {
	t.Parallel()
	ttl := time.Second
	if room := allRoom(ttl); room > 30*time.Second {
		t.Fatalf("30 s are too short: it needs %v", room)
	}
	orders := make(map[act]bool)
	for seed := range int64(20) {
		seen := make(map[act]int)
		var open act
		redisOver := -time.Hour
		steps := plan(options{fault: faultAll, duration: 30 * time.Second, ttl: ttl, seed: seed})
		orders[steps[0].act] = true
		for i, s := range steps {
			seen[s.act]++
			if i > 0 && s.at < steps[i-1].at {
				t.Errorf("seed %d: step %d comes before the one before it", seed, i)
			}
			switch s.act {
			case killRedis, pauseMySQL, killMySQL:
				if open != 0 {
					t.Errorf("seed %d: two faults at once at %v", seed, s.at)
				}
				open = s.act
			case reviveRedis, resumeMySQL, reviveMySQL:
				open = 0
			case flushRedis, stopHolder:
				if open != 0 {
					t.Errorf("seed %d: two faults at once at %v", seed, s.at)
				}
			}
			if s.act == reviveRedis || s.act == flushRedis {
				redisOver = s.at
			}
			if s.act.startsMySQLOutage() && s.at-redisOver < 2*ttl {
				t.Errorf("seed %d: MySQL goes out %v after Redis", seed, s.at-redisOver)
			}
		}
		for a := flushRedis; a <= reviveMySQL; a++ {
			if seen[a] == 0 {
				t.Errorf("seed %d: act %d never happens", seed, a)
			}
		}
		if seen[pauseMySQL] != seen[resumeMySQL] || seen[killMySQL] != seen[reviveMySQL] || seen[killRedis] != seen[reviveRedis] {
			t.Errorf("seed %d: a fault is not ended: %v", seed, seen)
		}
	}
	if len(orders) < 3 {
		t.Errorf("20 seeds begin with %d faults, want several", len(orders))
	}
}
