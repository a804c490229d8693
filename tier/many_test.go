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

func TestAcquireAny_refusesABadKeyBeforeAnyIO(t *testing.T) {
	r := newRig(t)
	for range 20 { // it starts anywhere among the keys
		if lease, err := r.AcquireAny(t.Context(), "a", ""); !errors.Is(err, tier.ErrKey) {
			t.Fatalf("%v, %v, want ErrKey", lease, err)
		}
	}
	if n := r.calls.total(); n != 0 {
		t.Errorf("%d calls of the drivers, want none", n)
	}
}

// A fault on one key says more than contention on the others, whichever answers
// last.
func TestAcquireAny_aFaultSaysMoreThanContention(t *testing.T) {
	for _, faulty := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			others := r.peer(t)
			held := tier.Leases{others.must(t, "a"), others.must(t, "b")}
			if err := r.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.calls.on(func(_ context.Context, c call) error {
				if c.op == "look" && c.keys[0] == namespace+"/"+faulty {
					return fault("look", driver.ClassConfig)
				}
				return nil
			}, nil)
			if _, err := r.AcquireAny(t.Context(), "a", "b"); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("config fault on %q: %v, want ErrUnavailable", faulty, err)
			}
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is promised for a key that is held already must be what the tenure keeps.
func TestAcquire_againWithAMinHold_isRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		plain := r.must(t, "plain")
		if _, err := r.Acquire(plain.Context(), "plain", tier.WithMinHold(1)); !errors.Is(err, tier.ErrOption) {
			t.Errorf("min hold on a tenure that has none: %v, want ErrOption", err)
		}
		if err := plain.Release(t.Context()); err != nil {
			t.Error(err)
		}
		job := r.must(t, "job", tier.WithMinHold(2))
		again, err := r.Acquire(job.Context(), "job", tier.WithMinHold(1))
		if err != nil {
			t.Fatal(err)
		}
		if err := (tier.Leases{job, again}).Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAcquireAll_lostMeanwhile_saysAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithMaxHold(300*time.Millisecond))
		blocker := r.peer(t).must(t, "b")
		time.AfterFunc(600*time.Millisecond, func() { _ = blocker.Release(context.Background()) })
		_, err := r.AcquireAll(t.Context(), "a", "b")
		said, ok := errors.AsType[*tier.Error](err)
		if !errors.Is(err, tier.ErrMaxHold) || !ok || said.Op != "acquire" || said.Key != "a" {
			t.Errorf("%v, want ErrMaxHold of an acquire of a", err)
		}
		<-blocker.Done()
	})
}
