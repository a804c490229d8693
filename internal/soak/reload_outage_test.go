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

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

func stopping(match string) tier.Policy {
	return tier.Policy{Match: match, Degrade: fallback.Ladder{fallback.Retry, fallback.FailClosed}}
}

func goingOn(match string) tier.Policy {
	return tier.Policy{Match: match, Degrade: fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed}, LocalFor: 30 * time.Second}
}

// A reload in an outage reaches who waits: what stopped may go on locally, and the
// other way round. What is held locally keeps its terms.
func TestReload_inAnOutage(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			m := join(t, s, soonOut(), tier.WithTTL(20*time.Second), tier.WithPolicies(stopping("orders/**"), goingOn("inventory/**")))
			first, second := m.must(t, "orders/1", tier.LevelFull), m.must(t, "inventory/2", tier.LevelFull)
			orders := m.waits(t, "orders/1", tier.WithWait(time.Minute))
			inventory := m.waits(t, "inventory/2", tier.WithWait(time.Minute))
			orders.waitsStill(t, 100*time.Millisecond)
			m.ToMySQL.Cut()
			m.opens(t, "orders/other")
			local := m.must(t, "inventory/1", tier.LevelLocal)
			if _, err := m.Acquire(t.Context(), "orders/2"); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("before the reload: %v, want ErrUnavailable", err)
			}

			if err := m.SetPolicies(tier.Policy{Match: "orders/**", Degrade: fallback.Ladder{fallback.Local}}); !errors.Is(err, tier.ErrOption) {
				t.Errorf("local without a time for it: %v, want ErrOption", err)
			}
			if rung := m.Rung("orders/1"); rung != fallback.FailClosed {
				t.Errorf("a refused reload changed the rung to %v", rung)
			}
			noError(t, m.SetPolicies(goingOn("orders/**"), stopping("inventory/**")))
			released(t, m.must(t, "orders/2", tier.LevelLocal))
			for _, lease := range []*tier.Lease{first, second} {
				if err := lease.Release(t.Context()); err == nil {
					t.Error("a release that MySQL cannot have heard of answers nil")
				}
			}
			released(t, orders.granted(t, tier.LevelLocal, time.Second+leeway))
			select {
			case <-inventory.done:
				if !errors.Is(inventory.err, tier.ErrUnavailable) {
					t.Errorf("who waits under the policy that stops now: %v, %v; want ErrUnavailable", inventory.lease, inventory.err)
				}
			case <-time.After(time.Second + leeway):
				t.Error("who waits under the policy that stops now goes on waiting")
			}
			noError(t, local.Err())
			noError(t, local.Renew(t.Context()))
			if _, err := m.TryAcquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("the next on a key that is held locally: %v, want ErrUnavailable", err)
			}
			noError(t, m.ToMySQL.Heal())
			until(t, 10*time.Second, "what is held locally is promoted", func() bool { return isTaken(t, s, "inventory/1") })
			released(t, local)
			until(t, 10*time.Second, "nothing is held", func() bool { return s.Held(t) == 0 })
		})
	}
}

// Reloads come all the time, and move keys from tier to tier and from terms to
// terms under those who wait: a process has one holder of a key, and in the end
// nothing is left.
func TestReload_betweenTiers(t *testing.T) {
	t.Parallel()
	reloads := 100
	if soak {
		reloads = 1000
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			sets := [][]tier.Policy{
				{{Match: "k/**", Options: []tier.AcquireOption{tier.WithHolder("both"), tier.WithTTL(15 * time.Second)}}},
				{{Match: "k/**", Tiers: tier.TiersFilter, Options: []tier.AcquireOption{tier.WithHolder("redis"), tier.WithTTL(16 * time.Second)}}},
				{{Match: "k/**", Tiers: tier.TiersAuthority, Options: []tier.AcquireOption{tier.WithHolder("mysql"), tier.WithTTL(17 * time.Second)}}},
			}
			level := map[string]tier.Level{"both": tier.LevelFull, "redis": tier.LevelFilter, "mysql": tier.LevelAuthority}
			// The other process makes who waits be next in line, with a mark of its own.
			m, other := join(t, s, tier.WithPolicies(sets[0]...)), join(t, s, tier.WithPolicies(sets[0]...))
			kept := make(map[*tier.Lease]string)
			for i, set := range sets {
				noError(t, m.SetPolicies(set...))
				lease, err := m.Acquire(t.Context(), fmt.Sprintf("k/kept-%d", i))
				noError(t, err)
				kept[lease] = lease.Holder()
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var holders [2][4]atomic.Int64 // in each process
			var granted sync.Map           // level to count
			var crew sync.WaitGroup
			for i := range 64 {
				m, holders := m, &holders[i%2]
				if i%2 == 1 {
					m = other
				}
				crew.Go(func() {
					for rng := nodeRand(i); ctx.Err() == nil; {
						k := rng.IntN(len(holders))
						lease, err := m.Acquire(ctx, fmt.Sprintf("k/%d", k))
						if err != nil {
							if ctx.Err() == nil && !errors.Is(err, tier.ErrHeld) {
								t.Error(err)
							}
							continue
						}
						if n := holders[k].Add(1); n != 1 {
							t.Errorf("k/%d has %d holders", k, n)
						}
						if want := level[lease.Holder()]; lease.Level() != want && (want != tier.LevelFull || lease.Level() != tier.LevelAuthority) {
							t.Errorf("holder %q at level %s", lease.Holder(), lease.Level())
						}
						n, _ := granted.LoadOrStore(lease.Level(), new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
						time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond) // reloads come under those who wait
						holders[k].Add(-1)
						if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
					}
				})
			}
			for i := range reloads {
				noError(t, m.SetPolicies(sets[i%len(sets)]...))
				noError(t, other.SetPolicies(sets[i*7/5%len(sets)]...))
				time.Sleep(time.Duration(10+i%20) * time.Millisecond)
			}
			stop()
			crew.Wait()
			for _, l := range []tier.Level{tier.LevelFull, tier.LevelFilter, tier.LevelAuthority} {
				n, ok := granted.Load(l)
				if !ok {
					t.Errorf("none was granted at level %s", l)
					continue
				}
				t.Logf("%d at level %s", n.(*atomic.Int64).Load(), l)
			}
			for lease, holder := range kept {
				if err := lease.Err(); err != nil || lease.Holder() != holder || lease.Level() != level[holder] {
					t.Errorf("held through all reloads: %v, holder %q at level %s, was %q", err, lease.Holder(), lease.Level(), holder)
				}
				noError(t, lease.Renew(t.Context()))
				left := time.Until(lease.Deadline())
				if ttl := map[string]time.Duration{"both": 15 * time.Second, "redis": 16 * time.Second, "mysql": 17 * time.Second}[holder]; left > ttl-ttl/10 || left < ttl-ttl/10-time.Second {
					t.Errorf("%q: renewed for %v, its TTL is %v less a margin", lease.Key(), left, ttl)
				}
				noError(t, lease.Verify(t.Context()))
				released(t, lease)
			}
			until(t, 2*time.Second+leeway, "no row and no mark is left", func() bool { return s.Held(t) == 0 && s.Marks(t) == 0 })
		})
	}
}
