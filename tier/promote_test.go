// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// A lease of this process that is still being given back is no other's; and a
// promotion that failed is tried again.
func TestPromotion_again(t *testing.T) {
	for name, met := range map[string]error{
		"leaving": &driver.Refusal{Left: time.Second, Leaving: true},
		"busy":    &driver.Refusal{Busy: true},
		"fault":   fault("claim", driver.ClassUnknown),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, shop())
				r.open(t)
				lease := r.must(t, "inventory/1")
				first := r.calls.count("claim") + 1
				r.calls.on(onOp("claim", func(_ context.Context, c call) error {
					if c.n == first {
						return met
					}
					return nil
				}), nil)
				r.authority.Up()
				time.Sleep(5 * time.Second) // a renewal comes by
				if !r.row(t, "inventory/1").Held {
					t.Error("never promoted")
				}
				if err := lease.Err(); err != nil {
					t.Error(err)
				}
				r.release(t, lease)
				r.clean(t)
			})
		})
	}
}

// promoted is a lease of the rung local after the outage: a row stands behind it.
func (r *rig) promoted(t *testing.T, key string) *tier.Lease {
	t.Helper()
	r.open(t)
	lease := r.must(t, key)
	r.authority.Up()
	time.Sleep(time.Second)
	if !r.row(t, key).Held {
		t.Fatal("the row was not taken")
	}
	return lease
}

// When the authority is back an ordinary claim keeps others out; the lease stays
// without a fence to its end.
func TestPromotion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		other := r.peer(t, shop())
		lease := r.promoted(t, "inventory/1")
		mustLevel(t, lease, tier.LevelLocal)
		if proof, err := lease.Prove(); err != nil || proof.Fence != 0 {
			t.Errorf("prove: fence %d, %v; want fence 0", proof.Fence, err)
		}
		if err := lease.Verify(t.Context()); err != nil {
			t.Errorf("verify: %v", err)
		}
		r.filter.Flush()
		if _, err := other.Acquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("another process: %v, want ErrHeld", err)
		}
		time.Sleep(2 * localFor) // it is renewed by the authority now
		if err := lease.Err(); err != nil {
			t.Errorf("after twice local_for: %v", err)
		}
		got := make(chan *tier.Lease)
		go func() { got <- r.must(t, "inventory/1") }()
		synctest.Wait()
		r.release(t, lease)
		next := <-got
		mustLevel(t, next, tier.LevelFull)
		r.release(t, next)
		r.clean(t)
	})
}

// Held by another process when the authority is back: the local lease ends.
func TestPromotion_refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		other := r.peer(t, shop())
		r.open(t)
		lease := r.must(t, "inventory/1")
		r.filter.Flush() // Redis forgets
		theirs := other.must(t, "inventory/1")
		r.authority.Up()
		time.Sleep(time.Second)
		if err := lease.Err(); !errors.Is(err, tier.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		if err := theirs.Verify(t.Context()); err != nil {
			t.Errorf("theirs: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil && !errors.Is(err, tier.ErrLost) {
			t.Errorf("release: %v", err)
		}
		r.release(t, theirs)
		r.clean(t)
	})
}

// Whatever moment a local lease is released at, its promotion leaves nothing.
func TestPromotion_releasedMeanwhile(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, shop())
				r.open(t)
				lease := r.must(t, "inventory/1")
				in, out := make(chan struct{}), make(chan struct{})
				hold := onOp("claim", func(context.Context, call) error {
					close(in)
					<-out
					return nil
				})
				if when == "before" {
					r.calls.on(hold, nil)
				} else {
					r.calls.on(nil, hold)
				}
				r.authority.Up()
				<-in
				r.calls.on(nil, nil)
				r.release(t, lease)
				if _, err := r.TryAcquire(t.Context(), "inventory/1"); err == nil {
					t.Error("granted to the next while the promotion is under way")
				}
				close(out)
				synctest.Wait()
				r.clean(t)
				next := r.must(t, "inventory/1")
				mustLevel(t, next, tier.LevelFull)
				r.release(t, next)
				r.clean(t)
			})
		})
	}
}
