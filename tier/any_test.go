// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// slow gives every call of the drivers a time, as a network and a disk do.
func (r *rig) slow(filter, authority time.Duration) {
	r.calls.on(func(_ context.Context, c call) error {
		switch c.op {
		case "claim", "release", "look", "renew":
			time.Sleep(authority)
		case "mark", "extend", "overwrite", "clear", "refresh":
			time.Sleep(filter)
		}
		return nil
	}, nil)
}

// rate is how many tenures a second some workers get out of some keys.
func (r *rig) rate(t *testing.T, keys []string, workers, tenures int) float64 {
	t.Helper()
	start := time.Now()
	var crew sync.WaitGroup
	var mu sync.Mutex
	left := tenures
	for range workers {
		crew.Go(func() {
			for {
				mu.Lock()
				mine := left > 0
				left--
				mu.Unlock()
				if !mine {
					return
				}
				lease, err := r.AcquireAny(t.Context(), keys...)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Millisecond)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	crew.Wait()
	return float64(tenures) / time.Since(start).Seconds()
}

// Sixteen pieces of a key are held sixteen at a time, and hardly a claim is made
// that nobody uses.
func TestAcquireAny_piecesInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithWait(time.Minute))
		if err := r.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.slow(200*time.Microsecond, 4*time.Millisecond)
		one := r.rate(t, []string{"hot"}, 64, 100)
		claims := r.calls.count("claim")
		many := r.rate(t, tier.Segments("split", 16), 64, 1600)
		claims = r.calls.count("claim") - claims
		t.Logf("one key: %.0f a second; 16 pieces: %.0f a second, %.1f times, %d claims for 1600 tenures", one, many, many/one, claims)
		if many < 12*one {
			t.Errorf("16 pieces are %.1f times as fast as one, want nearly 16 times", many/one)
		}
		if claims > 1700 {
			t.Errorf("%d claims for 1600 tenures", claims)
		}
		time.Sleep(time.Second)
		r.clean(t)
	})
}

// What one process gives back reaches who waits for any of several keys in
// another, and each message makes one of them ask.
func TestAcquireAny_acrossProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithWait(time.Minute), tier.WithTTL(time.Minute))
		other := r.peer(t, tier.WithTTL(time.Minute))
		held := tier.Leases{other.must(t, "a"), other.must(t, "b")}
		got := make(chan *tier.Lease, 10)
		for range 10 {
			go func() {
				lease, err := r.AcquireAny(t.Context(), "a", "b")
				if err != nil {
					t.Error(err)
				}
				got <- lease
			}()
		}
		time.Sleep(20 * time.Second) // polls are at their slowest
		before, start := r.calls.count("mark"), time.Now()
		if err := held[1].Release(t.Context()); err != nil {
			t.Error(err)
		}
		lease := <-got
		if lease.Key() != "b" || time.Since(start) > 10*time.Millisecond {
			t.Errorf("%q after %v, want b at once", lease.Key(), time.Since(start))
		}
		if n := r.calls.count("mark") - before; n > 2 {
			t.Errorf("one key was given back, and %d callers asked for it", n)
		}
		if err := held[0].Release(t.Context()); err != nil {
			t.Error(err)
		}
		for range 9 {
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			lease = <-got
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		r.clean(t)
	})
}

// Two processes that wait for what a third holds do not keep each other busy.
func TestAcquireAny_waitersAreQuiet_H1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, tier.WithWait(10*time.Second), tier.WithTTL(time.Minute))
		b := a.peer(t, tier.WithWait(10*time.Second), tier.WithTTL(time.Minute))
		holder := a.peer(t, tier.WithTTL(time.Minute))
		leases := tier.Leases{holder.must(t, "k"), holder.must(t, "k2")}
		a.filter.Flush() // the rows say no, every time
		var wait sync.WaitGroup
		for _, r := range []*rig{a, b} {
			for range 5 {
				wait.Go(func() {
					if _, err := r.AcquireAny(t.Context(), "k", "k2"); !errors.Is(err, tier.ErrHeld) {
						t.Errorf("%v, want ErrHeld", err)
					}
				})
			}
		}
		wait.Wait()
		if n := a.calls.total() + b.calls.total(); n > 1500 {
			t.Errorf("%d calls of ten waiters in ten seconds", n)
		}
		t.Logf("%d calls of ten waiters in ten seconds", a.calls.total()+b.calls.total())
		if err := leases.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAcquireAny_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		held := r.peer(t).must(t, "k")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := r.AcquireAny(ctx, "k")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tier.ErrHeld) || time.Since(start) != 500*time.Millisecond {
			t.Errorf("%v after %v, want the context's error and ErrHeld after 500ms", err, time.Since(start))
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
