// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

func localOnly(ttl time.Duration) tier.Option {
	return tier.WithPolicies(
		tier.Policy{Match: "payment/**", Degrade: fallback.Ladder{fallback.Retry, fallback.FailClosed}},
		tier.Policy{Match: "inventory/**", Options: []tier.AcquireOption{tier.WithTTL(ttl)}, Degrade: fallback.Ladder{fallback.Local, fallback.FailClosed}, LocalFor: localFor},
	)
}

// The mark that a renewal plants when Redis is back is a local lease's: flagged.
func TestLocal_markPlantedLaterIsFlagged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop(), tier.WithBreaker(breaker.Settings{GlobalAfter: time.Hour, MinSpan: time.Hour}))
		r.filter.Down()
		for range 6 {
			if l, err := r.Acquire(t.Context(), "payment/x"); err == nil {
				r.release(t, l)
			}
		}
		r.open(t)
		lease := r.must(t, "inventory/1")
		mustLevel(t, lease, tier.LevelLocal)
		r.filter.Up()
		time.Sleep(5 * time.Second)
		if lease.Err() != nil {
			t.Fatal(lease.Err())
		}
		state, err := r.filter.Join().Mark(t.Context(), "rig/inventory/1", driver.Mark{Token: driver.NewToken(), TTL: time.Second})
		if err != nil || state.Ours {
			t.Fatalf("no mark: %+v %v", state, err)
		}
		if !state.Flagged {
			t.Errorf("the mark of a local lease is not flagged")
		}
		r.release(t, lease)
	})
}

// A TTL whose margin is longer than local_for leaves local_for as it is.
func TestLocal_ttlFarAboveLocalFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, localOnly(10*time.Minute), tier.WithBreaker(breaker.Settings{GlobalAfter: time.Hour, MinSpan: time.Hour}))
		r.open(t)
		start := time.Now()
		lease, err := r.Acquire(t.Context(), "inventory/1")
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		r.release(t, lease)
	})
}

// The authority comes back while the flagged mark is planted.
func TestLocal_tierBackMeanwhile(t *testing.T) {
	for _, earlier := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, localOnly(10*time.Second))
			if earlier {
				r.open(t)
				l := r.must(t, "inventory/0")
				r.authority.Up()
				time.Sleep(2 * time.Second)
				r.release(t, l)
			}
			r.open(t)
			once := false
			r.calls.on(onOp("mark", func(context.Context, call) error {
				if !once {
					once = true
					r.authority.Up()
					time.Sleep(900 * time.Millisecond)
				}
				return nil
			}), nil)
			lease, err := r.Acquire(t.Context(), "inventory/1")
			if err != nil {
				t.Errorf("earlier outage %v: mysql is back: %v", earlier, err)
				return
			}
			if lease.Level() == tier.LevelLocal {
				time.Sleep(time.Second)
				t.Errorf("earlier outage %v: level local with mysql closed; a second later %d rows are held (0: not promoted)", earlier, r.authority.Held())
			}
			r.release(t, lease)
		})
	}
}

func cache(ttl time.Duration) tier.Option {
	return tier.WithPolicies(tier.Policy{
		Match: "cache/**", Tiers: tier.TiersFilter, Options: []tier.AcquireOption{tier.WithTTL(ttl)},
		Degrade: fallback.Ladder{fallback.Local, fallback.FailClosed}, LocalFor: localFor,
	})
}

// A mark that is a lease is released within its context, on a silent Redis too.
func TestTiers_releaseKeepsItsBound_P10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cache(10*time.Second))
		lease := r.must(t, "cache/1")
		r.filter.Silence()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := lease.Release(ctx)
		if d := time.Since(start); d > 150*time.Millisecond {
			t.Errorf("release with a context of 50ms took %v (%v)", d, err)
		}
		r.filter.Up()
		time.Sleep(2 * time.Second)
	})
}

// A fault at the release of a job does not let the next one in early.
func TestTiers_minHoldOverAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cache(10*time.Second))
		lease, err := r.Acquire(t.Context(), "cache/1", tier.WithMinHold(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		once := false
		r.calls.on(onOp("extend", func(context.Context, call) error {
			if once {
				return nil
			}
			once = true
			return fault("extend", driver.ClassTransient)
		}), nil)
		err = lease.Release(t.Context())
		t.Log("release:", err)
		time.Sleep(500 * time.Millisecond)
		if again, err := r.TryAcquire(t.Context(), "cache/1"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("500ms after the grant with MinHold 5s: %v, want ErrHeld", err)
			r.release(t, again)
		}
	})
}

// A promotion whose reply was lost is not refused by what it may have planted.
func TestPromotion_overItsOwnLostMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cache(500*time.Millisecond), tier.WithBreaker(breaker.Settings{GlobalAfter: time.Hour, MinSpan: time.Hour}))
		r.filter.Down()
		for range 6 {
			if opening, err := r.TryAcquire(t.Context(), "cache/x"); err == nil {
				r.release(t, opening)
			}
		}
		synctest.Wait()
		lease := r.must(t, "cache/1")
		mustLevel(t, lease, tier.LevelLocal)
		var marked atomic.Int64
		r.calls.on(nil, onOp("mark", func(context.Context, call) error {
			if marked.Add(1) == 1 {
				return fault("mark", driver.ClassUnknown) // the reply is lost
			}
			return nil
		}))
		r.filter.Up()
		time.Sleep(3 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("nobody else wants the key: %v", err)
		}
		_ = lease.Release(t.Context())
	})
}

// AcquireAny outlasts what Acquire does.
func TestAcquireAny_retriesAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		warm := r.must(t, "warm")
		r.release(t, warm)
		r.authority.Down()
		time.AfterFunc(50*time.Millisecond, r.authority.Up)
		start := time.Now()
		lease, err := r.AcquireAny(t.Context(), tier.Segments("sku", 16)...)
		if err != nil {
			t.Errorf("AcquireAny after %v: %v", time.Since(start), err)
		} else {
			r.release(t, lease)
		}
		time.Sleep(time.Second)
		r.authority.Down()
		time.AfterFunc(50*time.Millisecond, r.authority.Up)
		lease, err = r.Acquire(t.Context(), "one")
		if err != nil {
			t.Errorf("Acquire: %v", err)
		} else {
			r.release(t, lease)
		}
	})
}
