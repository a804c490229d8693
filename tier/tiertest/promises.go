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

// checkExclusion lets workers of three processes fight for two keys while the
// filter forgets everything again and again.
func checkExclusion(t *testing.T, c *cluster) {
	const perKey = 40
	keys := []string{"a", "b"}
	inside := make([]atomic.Int32, len(keys))
	done := make([]atomic.Int32, len(keys))

	ctx, cancel := context.WithCancel(t.Context())
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			c.Flush(t)
			time.Sleep(5 * time.Millisecond)
		}
	})
	var workers sync.WaitGroup
	for range 3 {
		l := c.locker(t, tier.WithWait(30*time.Second))
		for range 4 {
			workers.Go(func() {
				for i := 0; done[0].Load() < perKey || done[1].Load() < perKey; i++ {
					k := rand.IntN(len(keys))
					lease, err := l.Acquire(t.Context(), keys[k])
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if n := inside[k].Add(1); n != 1 {
						t.Errorf("%d holders of %q at once", n, keys[k])
					}
					time.Sleep(rand.N(3 * time.Millisecond))
					inside[k].Add(-1)
					done[k].Add(1)
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	workers.Wait()
	cancel()
	flusher.Wait()
}

// checkFence orders the fences by the tenures they belong to.
func checkFence(t *testing.T, c *cluster) {
	var last atomic.Uint64
	var tenures atomic.Int32
	var workers sync.WaitGroup
	for range 3 {
		l := c.locker(t, tier.WithWait(30*time.Second))
		for range 3 {
			workers.Go(func() {
				for tenures.Add(1) <= 120 {
					lease, err := l.Acquire(t.Context(), "k")
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if before := last.Swap(lease.Fence()); before >= lease.Fence() {
						t.Errorf("fence %d came after %d", lease.Fence(), before)
					}
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	workers.Wait()
}

func checkFenceOfOneTenure(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithTTL(time.Second))
	lease := mustAcquire(t, l, "k")
	fence, deadline := lease.Fence(), lease.Deadline()
	before, err := l.Authority.Look(t.Context(), "suite/k")
	if err != nil || before.Fence < fence { // it says what is reserved for the tenures to come
		t.Errorf("row %+v, %v; want at least fence %d", before, err, fence)
	}
	if err := lease.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "two renewals in the background", func() bool {
		return lease.Deadline().Sub(deadline) > 650*time.Millisecond
	})
	if lease.Fence() != fence {
		t.Errorf("the fence went from %d to %d during a tenure", fence, lease.Fence())
	}
	if row, err := l.Authority.Look(t.Context(), "suite/k"); err != nil || !row.Held || row.Fence != before.Fence {
		t.Errorf("row %+v, %v; it was %+v", row, err, before)
	}
	if left := time.Until(lease.Deadline()); left > time.Second { // A15
		t.Errorf("%v left of a TTL of 1s", left)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// checkEarlyLoss cuts a holder off from the authority; its context must have
// ended when another process is granted the key.
func checkEarlyLoss(t *testing.T, c *cluster) {
	a, b := c.locker(t, tier.WithTTL(time.Second)), c.locker(t)
	lease := mustAcquire(t, a, "k")
	restore := a.SilenceAuthority()
	defer restore()
	next := mustAcquire(t, b, "k", tier.WithWait(10*time.Second))
	if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrLost) {
		t.Errorf("another was granted the key and the holder's context has cause %v", cause)
	}
	if err := lease.Err(); !errors.Is(err, tier.ErrLost) {
		t.Errorf("Err: %v", err)
	}
	if next.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
	}
	restore()
	if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
		t.Errorf("release of a lost lease: %v", err)
	}
	if err := next.Verify(t.Context()); err != nil {
		t.Errorf("the stale release hit the successor: %v", err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// checkCancellation cancels acquires at instants spread over how long they
// take.
func checkCancellation(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithWait(2*time.Second))
	span := slowest(t, l)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(span))
				lease, err := l.Acquire(ctx, fmt.Sprintf("k%d", w%2))
				switch {
				case err == nil:
					// On a context that ends soon too, the answer may be that
					// nothing is known yet.
					if err := lease.Release(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("release: %v", err)
					}
				case !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("a cancelled acquire answered %v", err)
				}
				cancel()
			}
		})
	}
	workers.Wait()
	// Another process does not wait for any TTL.
	other := c.locker(t)
	start := time.Now()
	for _, key := range []string{"k0", "k1"} {
		lease := mustAcquire(t, other, key, tier.WithWait(1900*time.Millisecond))
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	took(t, "another's acquire of the keys", start, 2*time.Second)
	eventually(t, 2*time.Second, "nothing held and no mark", func() bool { return c.Held(t) == 0 && c.Marks(t) == 0 })
}

// slowest returns about the slowest of some acquires.
func slowest(t *testing.T, l locker) time.Duration {
	span := time.Millisecond
	for range 20 {
		start := time.Now()
		lease := mustAcquire(t, l, "warm")
		span = max(span, time.Since(start))
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return span * 3 / 2
}

func checkStaleRelease(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithTTL(2*time.Second))
	first := mustAcquire(t, l, "k")
	c.Revoke(t)
	if err := first.Verify(t.Context()); !errors.Is(err, tier.ErrLost) {
		t.Fatalf("verify of a revoked lease: %v", err)
	}
	if err := first.Err(); !errors.Is(err, tier.ErrLost) {
		t.Errorf("Err after the authority said no: %v", err)
	}
	second := mustAcquire(t, l, "k", tier.WithWait(15*time.Second))
	if err := first.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
		t.Errorf("release of a lost lease: %v, want ErrLost", err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Errorf("second release: %v, want nil", err)
	}
	if err := second.Verify(t.Context()); err != nil {
		t.Errorf("the successor in the same process was hit: %v", err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func checkStaleRenewal(t *testing.T, c *cluster) {
	a, b := c.locker(t, tier.WithTTL(time.Second)), c.locker(t)
	lease := mustAcquire(t, a, "k")
	restore := a.SilenceAuthority()
	defer restore()
	next := mustAcquire(t, b, "k", tier.WithWait(10*time.Second))
	if err := next.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	restore()
	if err := lease.Renew(t.Context()); !errors.Is(err, tier.ErrLost) {
		t.Errorf("renewal after somebody else came and went: %v, want ErrLost", err)
	}
	if n := c.Held(t); n != 0 {
		t.Errorf("%d rows held: a renewal re-created one", n)
	}
	_ = lease.Release(t.Context()) // its answer is the subject of another check
}

// checkHandOver waits with one process for what another releases: by message,
// long before the poll, which is slow by the time of the release, or the expiry.
func checkHandOver(t *testing.T, c *cluster) {
	a, b := c.locker(t), c.locker(t, tier.WithWait(8*time.Second))
	for range 3 {
		lease := mustAcquire(t, a, "k")
		granted := make(chan time.Time, 1)
		go func() {
			next, err := b.Acquire(t.Context(), "k")
			granted <- time.Now()
			if err == nil {
				err = next.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			granted <- time.Now()
		}()
		time.Sleep(1500 * time.Millisecond)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if waited := (<-granted).Sub(start); waited > 350*time.Millisecond {
			t.Errorf("a released key was granted after %v", waited)
		}
		<-granted
	}
}

func checkDeadContext(t *testing.T, c *cluster) {
	l := c.locker(t)
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := l.Acquire(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := lease.Err(); err != nil {
		t.Errorf("the caller's context ended the lease: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Errorf("release on a dead context: %v", err)
	}
	if n := c.Held(t); n != 0 {
		t.Errorf("%d rows held after a release", n)
	}
	if err := context.Cause(lease.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("the lease's context after release: %v", err)
	}
}

func checkLongHold(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithTTL(time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	lease, err := l.Acquire(ctx, "k")
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	deadline := lease.Deadline()
	eventually(t, 5*time.Second, "held for three TTLs", func() bool {
		return lease.Err() != nil || lease.Deadline().Sub(deadline) > 3*time.Second
	})
	if err := lease.Err(); err != nil {
		t.Errorf("lost while its process ran: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
