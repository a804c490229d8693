// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// checkAll lets workers of three processes take pairs of five keys in any
// order; half of their contexts end at random.
func checkAll(t *testing.T, c *cluster) {
	var inside [5]atomic.Int32
	var workers sync.WaitGroup
	for range 3 {
		l := c.locker(t, tier.WithWait(30*time.Second))
		for w := range 4 {
			workers.Go(func() {
				for range 15 {
					a, b := rand.IntN(len(inside)), rand.IntN(len(inside))
					ctx, cancel := context.WithCancel(t.Context())
					if w%2 == 0 {
						ctx, cancel = context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
					}
					leases, err := l.AcquireAll(ctx, fmt.Sprint(a), fmt.Sprint(b), fmt.Sprint(a))
					switch {
					case err == nil:
						transfer(t, leases, inside[:], a, b)
					case leases != nil:
						t.Errorf("an error and %d leases", len(leases))
					case ctx.Err() == nil:
						t.Errorf("acquire all: %v", err)
					}
					cancel()
				}
			})
		}
	}
	workers.Wait()
	eventually(t, 2*time.Second, "nothing held and no mark", func() bool { return c.Held(t) == 0 && c.Marks(t) == 0 })
}

func transfer(t *testing.T, leases tier.Leases, inside []atomic.Int32, a, b int) {
	want := 2
	if a == b {
		want = 1
	}
	if len(leases) != want || leases[0].Key() != fmt.Sprint(a) {
		t.Errorf("%d leases, the first of %q; want %d, the first of %d", len(leases), leases[0].Key(), want, a)
	}
	for _, lease := range leases {
		var i int
		_, _ = fmt.Sscan(lease.Key(), &i)
		if n := inside[i].Add(1); n != 1 {
			t.Errorf("%d holders of %d", n, i)
		}
	}
	time.Sleep(rand.N(2 * time.Millisecond))
	for _, lease := range leases {
		var i int
		_, _ = fmt.Sscan(lease.Key(), &i)
		inside[i].Add(-1)
	}
	if err := leases.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
}

// checkAllOrNothing fails on one key and must hold none of the others; keys
// held through the context are entered again.
func checkAllOrNothing(t *testing.T, c *cluster) {
	l, other := c.locker(t, tier.WithWait(300*time.Millisecond)), c.locker(t)
	blocker := mustAcquire(t, other, "b")
	if leases, err := l.AcquireAll(t.Context(), "c", "b", "a"); !errors.Is(err, tier.ErrHeld) || leases != nil {
		t.Fatalf("%v, %v; want ErrHeld and nothing", leases, err)
	}
	for _, key := range []string{"a", "c"} {
		// The rows are free; a mark may still be on its way out.
		lease, err := other.Acquire(t.Context(), key, tier.WithWait(time.Second))
		if err != nil {
			t.Errorf("%q is still held a second after the error: %v", key, err)
			continue
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := blocker.Release(t.Context()); err != nil {
		t.Fatal(err)
	}

	outer := mustAcquire(t, l, "b")
	leases, err := l.AcquireAll(outer.Context(), "c", "b")
	if err != nil {
		t.Fatalf("with one key held through the context: %v", err)
	}
	ctx, cancel := leases.Context()
	defer cancel()
	again, err := l.AcquireAll(ctx, "b", "c")
	if err != nil {
		t.Fatalf("all held through the context: %v", err)
	}
	if again[0].Fence() != outer.Fence() {
		t.Errorf("fence %d, want that of the outer tenure, %d", again[0].Fence(), outer.Fence())
	}
	if err := errors.Join(again.Release(t.Context()), leases.Release(t.Context())); err != nil {
		t.Error(err)
	}
	if err := outer.Verify(t.Context()); err != nil {
		t.Errorf("the outer handle: %v", err)
	}
	if err := outer.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// checkAny takes every segment once, and waits for one that is given back.
func checkAny(t *testing.T, c *cluster) {
	l, other := c.locker(t), c.locker(t, tier.WithWait(200*time.Millisecond))
	segments := tier.Segments("sku", 4)
	seen := make(map[string]*tier.Lease)
	for range segments {
		lease, err := l.AcquireAny(t.Context(), segments...)
		if err != nil {
			t.Fatal(err)
		}
		if seen[lease.Key()] != nil {
			t.Fatalf("%q granted twice", lease.Key())
		}
		seen[lease.Key()] = lease
	}
	if _, err := other.AcquireAny(t.Context(), segments...); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("all are held: %v, want ErrHeld", err)
	}
	got := make(chan *tier.Lease, 1)
	go func() {
		lease, err := l.AcquireAny(t.Context(), segments...)
		if err != nil {
			t.Errorf("waiting for any: %v", err)
		}
		got <- lease
	}()
	time.Sleep(50 * time.Millisecond)
	freed := seen[segments[2]]
	if err := freed.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lease := <-got; lease != nil {
		if lease.Key() != segments[2] {
			t.Errorf("granted %q, %q was freed", lease.Key(), segments[2])
		}
		seen[segments[2]] = lease
	}
	for _, lease := range seen {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	eventually(t, 2*time.Second, "nothing held", func() bool { return c.Held(t) == 0 })
}
