// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// silentWait is the wait of the calls.
const silentWait = 300 * time.Millisecond

// promised are calls, each with the bound that promise P10 has for it, and are
// measured.
type promised struct {
	mu          sync.Mutex
	calls, late int
}

// overslept is what 64 goroutines on two cores with the servers may add to a
// bound; no limit of the product's is as short.
const overslept = 500 * time.Millisecond

func (p *promised) within(t *testing.T, what string, bound time.Duration, call func() error) {
	t.Helper()
	began := time.Now()
	err := call()
	took := time.Since(began)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if took > bound {
		p.late++
	}
	if took > bound+overslept {
		t.Errorf("%s took %v, promised are %v: %v", what, took.Round(time.Millisecond), bound, err)
	}
}

// A tier falls silent: no reset, no refusal. No call outlasts its promise, with the
// breaker closed throughout, so that every call meets the silence, and with one
// that opens. A loss is told while the row still stands.
func TestOutage_silent_P10_E8_I3(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		for _, silent := range []string{"mysql", "redis"} {
			for _, never := range []bool{true, false} {
				name := fmt.Sprintf("%v/%s/opens=%t", engine, silent, !never)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					runSilent(t, tiers.New(t, engine), silent, never)
				})
			}
		}
	}
}

func runSilent(t *testing.T, s *tiers.Tiers, silent string, never bool) {
	settings := breaker.Settings{Consecutive: 2, ProbeEvery: probeEvery}
	if never {
		settings.Consecutive = 1 << 20
	}
	m := join(t, s, tier.WithBreaker(settings), tier.WithTTL(8*time.Second), tier.WithWait(silentWait),
		tier.WithPolicies(append(twoPolicies[:2:2], tier.Policy{Match: "cache/**", Tiers: tier.TiersFilter})...))
	const workers = 8
	hold := func(key string, ttl time.Duration) *tier.Lease {
		lease, err := m.Acquire(t.Context(), key, tier.WithTTL(ttl), tier.WithWait(10*time.Second))
		noError(t, err)
		return lease
	}
	var held, cached []*tier.Lease
	for i := range 4 * workers {
		row, mark := 8*time.Second, 8*time.Second
		switch {
		case i >= workers:
		case silent == "mysql":
			row = 3 * time.Second // these will be lost
		default:
			mark = 3 * time.Second
		}
		held = append(held, hold(fmt.Sprintf("payment/held-%d", i), row))
		cached = append(cached, hold(fmt.Sprintf("cache/held-%d", i), mark))
	}
	proxy := m.ToMySQL
	if silent == "redis" {
		proxy = m.ToRedis
	}
	proxy.BlackHole()
	t.Cleanup(func() { noError(t, proxy.Heal()) })

	began := time.Now()
	var crew sync.WaitGroup
	lost := held[:workers]
	if silent == "redis" {
		lost = cached[:workers]
	}
	for _, lease := range lost {
		crew.Go(func() {
			select {
			case <-lease.Context().Done():
			case <-time.After(10 * time.Second):
				t.Errorf("%q: the loss is not told", lease.Key())
				return
			}
			if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrLost) {
				t.Errorf("%q ended with %v, want ErrLost", lease.Key(), cause)
			}
			if late := time.Since(lease.Deadline()); late > overslept {
				t.Errorf("%q: the loss was told %v after the deadline", lease.Key(), late)
			}
			if silent == "mysql" && !isTaken(t, s, lease.Key()) && time.Since(lease.Deadline()) < 100*time.Millisecond {
				t.Errorf("%q: told when the row had expired", lease.Key())
			}
		})
	}

	var p promised
	rounds := 1
	if soak {
		rounds = 20
	}
	for i := range workers {
		crew.Go(func() {
			fresh := func(kind string, n int) string { return fmt.Sprintf("%s/new-%d-%d", kind, i, n) }
			got := func(lease *tier.Lease, err error) error {
				if err == nil {
					p.within(t, "Release of "+lease.Key(), time.Second+100*time.Millisecond, func() error { return lease.Release(context.Background()) })
				}
				return err
			}
			for n := range rounds {
				for _, kind := range []string{"payment", "inventory", "cache"} {
					var lease *tier.Lease
					p.within(t, "Acquire of "+kind, silentWait+100*time.Millisecond, func() (err error) {
						lease, err = m.Acquire(t.Context(), fresh(kind, n))
						return err
					})
					if lease != nil {
						_ = got(lease, nil)
						lease = nil
					}
					ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
					p.within(t, "Acquire within a context of "+kind, 250*time.Millisecond, func() (err error) {
						lease, err = m.Acquire(ctx, fresh(kind, n), tier.WithWait(5*time.Second))
						return err
					})
					cancel()
					if lease != nil {
						_ = got(lease, nil)
						lease = nil
					}
					p.within(t, "TryAcquire of "+kind, time.Second, func() (err error) {
						lease, err = m.TryAcquire(t.Context(), fresh(kind, n))
						return err
					})
					if lease != nil {
						_ = got(lease, nil)
					}
				}
				var all tier.Leases
				p.within(t, "AcquireAll", silentWait+100*time.Millisecond, func() (err error) {
					all, err = m.AcquireAll(t.Context(), fresh("payment", n), fresh("inventory", n), fresh("cache", n))
					return err
				})
				_ = all.Release(context.Background())
				var first *tier.Lease
				p.within(t, "AcquireAny", silentWait+100*time.Millisecond, func() (err error) {
					first, err = m.AcquireAny(t.Context(), tier.Segments(fresh("payment", n), 4)...)
					return err
				})
				if first != nil {
					_ = got(first, nil)
				}
			}
			for _, leases := range [][]*tier.Lease{held[workers:], cached[workers:]} {
				short, long, bare := leases[3*i], leases[3*i+1], leases[3*i+2]
				ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
				p.within(t, "Verify within a context", 250*time.Millisecond, func() error { return short.Verify(ctx) })
				cancel()
				p.within(t, "Verify", time.Second+100*time.Millisecond, func() error { return long.Verify(context.Background()) })
				p.within(t, "Renew", time.Second+100*time.Millisecond, func() error { return long.Renew(context.Background()) })
				ctx, cancel = context.WithTimeout(t.Context(), 150*time.Millisecond)
				p.within(t, "Renew within a context", 250*time.Millisecond, func() error { return bare.Renew(ctx) })
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 150*time.Millisecond)
				p.within(t, "Release within a context", 250*time.Millisecond, func() error { return short.Release(ctx) })
				cancel()
				p.within(t, "Release", time.Second+100*time.Millisecond, func() error { return long.Release(context.Background()) })
			}
		})
	}
	crew.Wait()
	if silent == "redis" { // MySQL alone renews what MySQL decides about
		time.Sleep(time.Until(began.Add(4 * time.Second))) // a renewal of each
		for _, lease := range held[:workers] {
			noError(t, lease.Err())
		}
	}
	t.Logf("%d calls, %d of them past what is promised", p.calls, p.late)
	if p.late*10 > p.calls {
		t.Errorf("%d of %d calls took longer than promised", p.late, p.calls)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	p.within(t, "Close", time.Second+100*time.Millisecond, func() error { return m.Close(ctx) })
}
