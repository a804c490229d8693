// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// Two processes crowd around a few keys of each kind of policy, nine of ten callers
// are refused, and one in ten goes away: no fault of a tier, and no breaker moves,
// though two failures in a row would do. And in such a crowd an open breaker closes.
// It runs alone, since a starved server is a fault.
func TestBreaker_crowdIsNoFault_L1_L5(t *testing.T) {
	total := int64(5_000)
	if soak {
		total = 100_000
	}
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		logger, log := logged()
		c := &crowd{}
		for range 2 {
			c.members = append(c.members, join(t, s, logger, onePolicies, tier.WithWait(time.Second), tier.WithBreaker(breaker.Settings{Consecutive: 2})))
		}
		c.come(t, total)
		t.Logf("granted %d, held %d, gone away %d", c.granted.Load(), c.held.Load(), c.gone.Load())
		if c.held.Load()*10 < total*7 || c.gone.Load()*100 < total*4 || c.granted.Load()*100 < total*2 {
			t.Error("too little of what this is about")
		}
		if n := c.unavailable.Load(); n != 0 {
			t.Errorf("%d were refused for a tier that is out", n)
		}
		if changes := log.FilterMessageSnippet("is out").All(); len(changes) != 0 {
			t.Errorf("a crowd moved a breaker: %v", changes)
		}

		m := c.members[0]
		m.refuses()
		m.opens(t, "payment/opening")
		go func() {
			time.Sleep(100 * time.Millisecond)
			m.ToMySQL.OnRequest(nil)
		}()
		c.until = func() bool { return m.Rung("payment/0") == fallback.None }
		began := time.Now()
		c.come(t, 1<<40)
		if took := time.Since(began); took > 2*time.Second+leeway {
			t.Errorf("in a crowd the breaker closes after %v", took)
		}
	})
}

// crowd is callers in two processes.
type crowd struct {
	members                          []*member
	until                            func() bool // nil: only the number ends it
	granted, held, gone, unavailable atomic.Int64
}

func (c *crowd) come(t *testing.T, total int64) {
	t.Helper()
	end := time.Now().Add(10 * time.Minute)
	if c.until != nil {
		end = time.Now().Add(30 * time.Second)
	}
	var asked atomic.Int64
	var crew sync.WaitGroup
	for of, m := range c.members {
		for i := range 32 {
			crew.Go(func() {
				for rng := nodeRand(100*of + i); asked.Add(1) <= total; {
					if c.until != nil && c.until() {
						return
					}
					if time.Now().After(end) {
						t.Error("not in time")
						return
					}
					key := fmt.Sprintf("%s/%d", []string{"payment", "ledger", "cache"}[rng.IntN(3)], rng.IntN(2))
					if rng.IntN(10) == 0 { // it waits, and goes away
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(5000))*time.Microsecond)
						c.came(t, key, func() (*tier.Lease, error) { return m.Acquire(ctx, key) })
						cancel()
						continue
					}
					c.came(t, key, func() (*tier.Lease, error) { return m.TryAcquire(t.Context(), key) })
				}
			})
		}
	}
	crew.Wait()
}

func (c *crowd) came(t *testing.T, key string, acquire func() (*tier.Lease, error)) {
	lease, err := acquire()
	switch {
	case err == nil:
		c.granted.Add(1)
		time.Sleep(5 * time.Millisecond) // a key that nobody holds has no crowd
		if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("release %q: %v", key, err)
		}
	case errors.Is(err, context.DeadlineExceeded):
		c.gone.Add(1)
	case errors.Is(err, tier.ErrHeld):
		c.held.Add(1)
		time.Sleep(15 * time.Millisecond)
	case errors.Is(err, tier.ErrUnavailable):
		c.unavailable.Add(1)
		if c.until == nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond)
	default:
		t.Errorf("%q: %v", key, err)
	}
}
