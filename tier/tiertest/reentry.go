// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// derived is a key of the caller's own.
type derived struct{}

// checkReentry enters a tenure again through its context, and leaves it from
// other goroutines, out of order and twice.
func checkReentry(t *testing.T, c *cluster) {
	l, other := c.locker(t), c.locker(t)
	first := mustAcquire(t, l, "k")
	second, err := l.Acquire(first.Context(), "k")
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	third, err := l.TryAcquire(context.WithValue(second.Context(), derived{}, 1), "k")
	if err != nil {
		t.Fatalf("re-entry by a try: %v", err)
	}
	if first.Fence() != second.Fence() || second.Fence() != third.Fence() {
		t.Errorf("fences %d, %d, %d of one tenure", first.Fence(), second.Fence(), third.Fence())
	}
	if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("a plain context of the same goroutine entered: %v", err)
	}
	if another, err := l.Acquire(first.Context(), "other-key"); err != nil {
		t.Errorf("another key under the lease's context: %v", err)
	} else if err := another.Release(t.Context()); err != nil {
		t.Error(err)
	}

	var releases sync.WaitGroup
	for range 2 {
		releases.Go(func() {
			if err := first.Release(t.Context()); err != nil {
				t.Errorf("release of the first handle: %v", err)
			}
		})
	}
	releases.Go(func() {
		if err := third.Release(t.Context()); err != nil {
			t.Errorf("release of the third handle: %v", err)
		}
	})
	releases.Wait()
	if err := first.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("Err of a released handle: %v", err)
	}
	if err := second.Err(); err != nil {
		t.Errorf("the tenure ended before its last handle: %v", err)
	}
	if _, err := other.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("granted to another while a handle was left: %v", err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Errorf("release of the last handle: %v", err)
	}
	if cause := context.Cause(first.Context()); !errors.Is(cause, context.Canceled) {
		t.Errorf("cause after the last release: %v", cause)
	}
	next := mustAcquire(t, other, "k")
	if next.Fence() <= first.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), first.Fence())
	}
	// Re-entry into what has ended is an ordinary acquire, on a context of its
	// own: the lease's has ended.
	if _, err := l.TryAcquire(context.WithoutCancel(first.Context()), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("re-entry into an ended tenure: %v, want ErrHeld", err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// checkReentryRace enters and leaves from many goroutines at once; whoever
// holds the last handle ends the tenure, and nobody enters an ended one.
func checkReentryRace(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithWait(30*time.Second))
	lease := mustAcquire(t, l, "k")
	var workers sync.WaitGroup
	for range 30 {
		workers.Go(func() {
			again, err := l.Acquire(context.WithoutCancel(lease.Context()), "k")
			if err != nil {
				t.Errorf("acquire: %v", err)
				return
			}
			if err := again.Err(); err != nil {
				t.Errorf("a handle of an ended tenure was given out: %v", err)
			}
			if err := again.Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	workers.Wait()
	if n := c.Held(t); n != 0 {
		t.Errorf("%d rows held", n)
	}
}

func checkDo(t *testing.T, c *cluster) {
	l := c.locker(t)
	boom := errors.New("boom")
	if err := l.Do(t.Context(), "k", func(ctx context.Context, lease *tier.Lease) error {
		return l.Do(ctx, "k", func(_ context.Context, inner *tier.Lease) error {
			if inner.Fence() != lease.Fence() {
				t.Errorf("fence %d inside %d", inner.Fence(), lease.Fence())
			}
			return boom
		})
	}); !errors.Is(err, boom) {
		t.Errorf("Do: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = l.Do(t.Context(), "k", func(context.Context, *tier.Lease) error { panic("in the section") })
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Do(t.Context(), "k", func(context.Context, *tier.Lease) error { runtime.Goexit(); return nil })
	}()
	<-ended
	if n := c.Held(t); n != 0 {
		t.Errorf("%d rows held after panic and Goexit", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := l.Do(ctx, "k", func(inner context.Context, _ *tier.Lease) error {
		cancel()
		<-inner.Done()
		return inner.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the caller's end did not reach the section: %v", err)
	}
}
