// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

func init() { roles["job"] = runJob }

const (
	jobPeriod = 2 * time.Second
	jobSkew   = 600 * time.Millisecond // the last process tries that much after the first
	jobHold   = 1400 * time.Millisecond
	jobLate   = 300 * time.Millisecond // a process that wakes up later leaves the period out, as cron does
)

// Five processes whose clocks differ try a job once a period: it runs exactly once
// in each.
func TestMinHold_oncePerPeriod(t *testing.T) {
	periods := 4
	if soak {
		periods = 20
	}
	t.Parallel() // it waits more than it works
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		if !soak {
			t.Parallel()
		}
		var mu sync.Mutex
		runs := make(map[int]int)
		var tries, late int
		var nodes []*process
		start := time.Now().Add(2 * time.Second) // all have started by then
		for i := range 5 {
			nodes = append(nodes, startProcess(t, "job", nodeSettings(s, i, map[string]string{
				"start": strconv.FormatInt(start.UnixNano(), 10), "periods": strconv.Itoa(periods),
			}), func(line string) {
				mu.Lock()
				defer mu.Unlock()
				var period int
				if _, err := fmt.Sscanf(line, "ran %d", &period); err == nil {
					runs[period]++
				}
				switch line {
				case "held":
					tries++
				case "late":
					late++
				}
				if len(line) > 5 && line[:5] == "wrong" {
					t.Error(line)
				}
			}))
		}
		for _, n := range nodes {
			select {
			case <-n.done:
			case <-time.After(time.Until(start) + time.Duration(periods+5)*jobPeriod):
				t.Error("a process did not end")
			}
			if err := n.end(); err != nil {
				t.Errorf("a process ended with %v", err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		t.Logf("runs by period: %v; %d tries met the lock, %d came too late", runs, tries, late)
		for p := range periods {
			if runs[p] != 1 {
				t.Errorf("period %d: the job ran %d times", p, runs[p])
			}
		}
		if tries < periods {
			t.Errorf("%d tries met the lock: nothing was kept out", tries)
		}
	})
}

func runJob() int {
	l, _, err := openNode(tier.WithTTL(time.Second))
	if err != nil {
		return wrong(err)
	}
	nanos, _ := strconv.ParseInt(setting("start"), 10, 64)
	periods, _ := strconv.Atoi(setting("periods"))
	node, _ := strconv.Atoi(setting("node"))
	for p := range periods {
		due := time.Unix(0, nanos).Add(time.Duration(p)*jobPeriod + time.Duration(node)*jobSkew/4)
		time.Sleep(time.Until(due))
		if time.Since(due) > jobLate {
			say("late")
			continue
		}
		lease, err := l.TryAcquire(context.Background(), "nightly", tier.WithMinHold(jobHold))
		for errors.Is(err, tier.ErrUnavailable) && time.Since(due) < jobLate { // a starved machine, not a held key
			time.Sleep(20 * time.Millisecond)
			lease, err = l.TryAcquire(context.Background(), "nightly", tier.WithMinHold(jobHold))
		}
		if errors.Is(err, tier.ErrHeld) {
			say("held")
			continue
		}
		if err != nil {
			wrong(err)
			continue
		}
		say("ran %d", p)
		time.Sleep(5 * time.Millisecond)
		if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) { // it goes on behind
			wrong(err)
		}
	}
	if err := closeNode(l); err != nil {
		return wrong(err)
	}
	return 0
}
