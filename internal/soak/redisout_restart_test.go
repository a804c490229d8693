// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// Redis is killed and comes back empty, again and again, under load: nobody is
// refused for it or waits longer for it, what is held stays held, and soon after
// it answers both tiers are behind leases again, and as many as before.
func TestRedisOut_restarts_E3(t *testing.T) {
	t.Parallel()
	rounds, slice := 3, 50*time.Millisecond
	if soak {
		rounds, slice = 10, 200*time.Millisecond
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			server := stack.StartRedis(t)
			s := tiers.On(t, server, stack.SharedSQL(t, engine))
			m := join(t, s)
			held := m.must(t, "payment/held", tier.LevelFull)
			work := &shift{m: m}
			work.ctx, work.stop = context.WithCancel(t.Context())
			defer work.ends()
			work.works(t, 16, "payment", 8) // two want each key
			granted := func() int64 { return work.full.Load() + work.authority.Load() }
			rate := func() float64 { // the median of five slices
				var rates []float64
				for range 5 {
					before, began := granted(), time.Now()
					time.Sleep(slice)
					rates = append(rates, float64(granted()-before)/time.Since(began).Seconds())
				}
				return median(rates)
			}
			until(t, 10*time.Second, "work goes on", func() bool { return work.full.Load() > 50 })
			usual := rate()
			for range rounds {
				alone := work.authority.Load()
				noError(t, server.Kill())
				until(t, 5*time.Second, "leases without Redis", func() bool { return work.authority.Load() > alone+20 })
				during := rate()
				noError(t, server.Restart(t.Context()))
				back := time.Now()
				full := work.full.Load() + 20
				until(t, 2*time.Second+leeway, "leases on both tiers", func() bool { return work.full.Load() > full })
				fullAfter := time.Since(back)
				if soak {
					time.Sleep(time.Until(back.Add(2 * time.Second)))
				}
				after := rate()
				t.Logf("%.0f a second before, %.0f without Redis, %.0f after; both tiers %v after Redis answers",
					usual, during, after, fullAfter.Round(time.Millisecond))
				if soak && after < usual/2 { // a measurement
					t.Errorf("two seconds after Redis is back %.0f a second, less than half of %.0f", after, usual)
				}
			}
			if n := work.unavailable.Load(); n > 0 {
				t.Errorf("%d acquires were refused because Redis was out", n)
			}
			noError(t, held.Err())
			noError(t, held.Verify(t.Context()))
			released(t, held)
			work.ends()
			until(t, 2*time.Second+leeway, "no row and no mark is left", func() bool { return s.Held(t) == 0 && s.Marks(t) == 0 })
		})
	}
}

// Redis is out and a crowd waits for one key: each is granted it in its turn, by
// the poll alone, within its wait.
func TestRedisOut_waitersGoOn(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			members := []*member{join(t, s, soonOut()), join(t, s, soonOut())}
			first := members[0].must(t, "payment/1", tier.LevelFull)
			var waiting []*waiter
			for i := range 16 {
				waiting = append(waiting, members[i%2].waits(t, "payment/1", tier.WithWait(time.Minute)))
			}
			for _, m := range members { // under those who listen
				m.ToRedis.Cut()
			}
			released(t, first)
			var fence atomic.Uint64
			fence.Store(first.Fence())
			for n := len(waiting); n > 0; n-- {
				next := whoever(t, waiting)
				noError(t, next.err)
				if last := fence.Swap(next.lease.Fence()); next.lease.Fence() <= last {
					t.Errorf("fence %d after %d", next.lease.Fence(), last)
				}
				if err := next.lease.Release(t.Context()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
			for _, m := range members {
				noError(t, m.ToRedis.Heal())
			}
			for i, m := range members {
				m.settles(t, fmt.Sprintf("payment/back-%d", i), tier.LevelFull, 2*time.Second+leeway)
			}
		})
	}
}

// whoever returns the next that is granted the key, once.
func whoever(t *testing.T, waiting []*waiter) *waiter {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, w := range waiting {
			select {
			case <-w.done:
				w.done = nil
				return w
			default:
			}
		}
	}
	t.Fatal("nobody is granted the key")
	return nil
}
