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

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

func init() { redis.SetLogger(quietRedis{}) } // it reports every refused dial

type quietRedis struct{}

func (quietRedis) Printf(context.Context, string, ...any) {}

// onePolicies lock with one tier alone.
var onePolicies = tier.WithPolicies(
	tier.Policy{Match: "cache/**", Tiers: tier.TiersFilter, Degrade: fallback.Ladder{fallback.Local, fallback.FailClosed}, LocalFor: 30 * time.Second},
	tier.Policy{Match: "strict/**", Tiers: tier.TiersFilter},
	tier.Policy{Match: "ledger/**", Tiers: tier.TiersAuthority},
)

// Two processes lock with Redis alone: one holder at a time, and MySQL hears
// nothing of it.
func TestRedisOut_filterExcludes(t *testing.T) {
	t.Parallel()
	s := tiers.New(t, stack.MariaDB)
	members := []*member{join(t, s, onePolicies), join(t, s, onePolicies)}
	time.Sleep(1200 * time.Millisecond) // the start-up questions, and idle lanes
	for _, m := range members {
		m.ToMySQL.Mark()
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var holders [4]atomic.Int64
	var granted [2]atomic.Int64
	var crew sync.WaitGroup
	for of, m := range members {
		for i := range 8 {
			crew.Go(func() {
				for rng := nodeRand(i); ctx.Err() == nil; {
					k := rng.IntN(len(holders))
					lease, err := m.Acquire(ctx, fmt.Sprintf("cache/%d", k))
					if err != nil {
						if ctx.Err() == nil && !errors.Is(err, tier.ErrHeld) {
							t.Error(err)
						}
						continue
					}
					if lease.Level() != tier.LevelFilter || lease.Fence() != 0 {
						t.Errorf("granted at level %s with fence %d", lease.Level(), lease.Fence())
					}
					if n := holders[k].Add(1); n != 1 {
						t.Errorf("cache/%d has %d holders", k, n)
					}
					granted[of].Add(1)
					time.Sleep(time.Millisecond)
					holders[k].Add(-1)
					if err := lease.Release(context.Background()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	crew.Wait()
	for of, m := range members {
		if n := m.ToMySQL.Bytes(); n != 0 {
			t.Errorf("%d bytes to MySQL", n)
		}
		if granted[of].Load() == 0 {
			t.Error("a process was never granted a key")
		}
	}
	t.Logf("granted %d and %d", granted[0].Load(), granted[1].Load())
	until(t, 2*time.Second+leeway, "no mark is left", func() bool { return s.Marks(t) == 0 })
}

// A lease of Redis alone is renewed, and lost with its mark: whoever asks learns
// it, and who does not learns it by its renewal.
func TestRedisOut_filterLoss(t *testing.T) {
	t.Parallel()
	s := tiers.New(t, stack.MariaDB)
	a, b := join(t, s, onePolicies, tier.WithTTL(2*time.Second)), join(t, s, onePolicies)
	for _, m := range []*member{a, b} {
		released(t, m.must(t, "cache/warm", tier.LevelFilter)) // scripts and connections
	}
	lease := a.must(t, "cache/1", tier.LevelFilter)
	unfenced(t, lease)
	time.Sleep(5 * time.Second)
	noError(t, lease.Verify(t.Context()))
	noError(t, lease.Renew(t.Context()))
	if _, err := b.TryAcquire(t.Context(), "cache/1"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("another process after two TTLs: %v, want ErrHeld", err)
	}
	next := b.waits(t, "cache/1", tier.WithWait(time.Minute))
	next.waitsStill(t, 100*time.Millisecond)
	released(t, lease)
	released(t, next.granted(t, tier.LevelFilter, time.Second+leeway))

	for _, c := range []struct {
		name   string
		ask    func(*tier.Lease) error
		taken  bool
		atOnce bool
	}{
		{"deleted, verify", func(l *tier.Lease) error { return l.Verify(t.Context()) }, false, true},
		{"foreign, verify", func(l *tier.Lease) error { return l.Verify(t.Context()) }, true, true},
		{"deleted, renew", func(l *tier.Lease) error { return l.Renew(t.Context()) }, false, true},
		{"foreign, renew", func(l *tier.Lease) error { return l.Renew(t.Context()) }, true, true},
		{"deleted, release", func(l *tier.Lease) error { return l.Release(t.Context()) }, false, true},
		{"foreign, release", func(l *tier.Lease) error { return l.Release(t.Context()) }, true, true},
		{"deleted, renewal", func(l *tier.Lease) error { <-l.Context().Done(); return context.Cause(l.Context()) }, false, false},
		{"foreign, renewal", func(l *tier.Lease) error { <-l.Context().Done(); return context.Cause(l.Context()) }, true, false},
	} {
		lost := a.must(t, "cache/1", tier.LevelFilter)
		s.Flush(t)
		var theirs *tier.Lease
		if c.taken {
			theirs = b.must(t, "cache/1", tier.LevelFilter)
		}
		deadline := lost.Deadline()
		if err := c.ask(lost); !errors.Is(err, tier.ErrLost) {
			t.Errorf("%s: %v, want ErrLost", c.name, err)
		}
		if !c.atOnce && time.Since(deadline) > 0 {
			t.Errorf("%s: not told before the deadline", c.name)
		}
		_ = lost.Release(t.Context())
		if theirs != nil {
			noError(t, theirs.Verify(t.Context())) // nobody took another's mark away
			released(t, theirs)
		}
	}
	a.settles(t, "cache/1", tier.LevelFilter, 2*time.Second+leeway)
}

// With Redis out a policy of Redis alone is on its own ladder, and one of MySQL
// alone does not notice.
func TestRedisOut_ladders(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]func(*stack.Proxy){"gone": (*stack.Proxy).Cut, "black hole": (*stack.Proxy).BlackHole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, stack.MariaDB)
			logger, log := logged()
			m, other := join(t, s, onePolicies, soonOut(), logger), join(t, s, onePolicies)
			row := m.must(t, "ledger/1", tier.LevelAuthority)
			out(m.ToRedis)
			m.opens(t, "strict/1")
			if _, err := m.Acquire(t.Context(), "strict/1"); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("strict: %v, want ErrUnavailable", err)
			}
			local := m.must(t, "cache/1", tier.LevelLocal)
			unfenced(t, local)
			if _, err := m.TryAcquire(t.Context(), "cache/1"); !errors.Is(err, tier.ErrHeld) {
				t.Errorf("a second local one: %v, want ErrHeld", err)
			}
			released(t, m.must(t, "ledger/2", tier.LevelAuthority), row)
			noError(t, m.ToRedis.Heal())
			until(t, 2*time.Second+leeway, "the local lease has its mark", func() bool { return s.Marks(t) == 1 })
			if _, err := other.TryAcquire(t.Context(), "cache/1"); !errors.Is(err, tier.ErrHeld) {
				t.Errorf("another process after the promotion: %v, want ErrHeld", err)
			}
			until(t, 2*time.Second+leeway, "it is promoted", func() bool { return log.FilterMessageSnippet("others are kept from a key").Len() > 0 })
			noError(t, local.Verify(t.Context()))
			noError(t, local.Renew(t.Context()))
			if _, err := other.TryAcquire(t.Context(), "cache/1"); !errors.Is(err, tier.ErrHeld) {
				t.Errorf("another process after the promotion and a renewal: %v, want ErrHeld", err)
			}
			released(t, local)
			released(t, other.must(t, "cache/1", tier.LevelFilter))
			m.settles(t, "strict/1", tier.LevelFilter, 2*time.Second+leeway)
			m.settles(t, "cache/1", tier.LevelFilter, 2*time.Second+leeway)
			if out, in := log.FilterMessageSnippet("redis is out").Len(), log.FilterMessage("tier is back").Len(); out != 1 || in != 1 {
				t.Errorf("the outage was told %d times, its end %d times; want once", out, in)
			}
		})
	}
}

// A policy of MySQL alone sends nothing to Redis, whoever waits.
func TestRedisOut_authorityAlone(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			a, b := join(t, s, onePolicies, tier.WithTTL(3*time.Second)), join(t, s, onePolicies)
			time.Sleep(300 * time.Millisecond) // what the start-up questions asked of Redis has ended
			for _, m := range []*member{a, b} {
				m.ToRedis.Mark()
			}
			first := a.must(t, "ledger/1", tier.LevelAuthority)
			same, other := a.waits(t, "ledger/1", tier.WithWait(time.Minute)), b.waits(t, "ledger/1", tier.WithWait(time.Minute))
			time.Sleep(1500 * time.Millisecond) // it is renewed
			noError(t, first.Verify(t.Context()))
			released(t, first)
			fences := []uint64{first.Fence()}
			for range 2 {
				var next *tier.Lease
				select {
				case <-same.done:
					next, same.done = same.granted(t, tier.LevelAuthority, time.Second), nil
				case <-other.done:
					next, other.done = other.granted(t, tier.LevelAuthority, time.Second), nil
				case <-time.After(3*time.Second + leeway):
					t.Fatal("who waits is not granted the key")
				}
				if last := fences[len(fences)-1]; next.Fence() <= last {
					t.Errorf("fence %d after %d", next.Fence(), last)
				}
				fences = append(fences, next.Fence())
				released(t, next)
			}
			for _, m := range []*member{a, b} {
				if n := m.ToRedis.Bytes() + m.ToRedis.Dials(); n != 0 {
					t.Errorf("%d bytes and dials to Redis", n)
				}
			}
		})
	}
}
