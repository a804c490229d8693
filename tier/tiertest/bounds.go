// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
)

func checkMaxHold(t *testing.T, c *cluster) {
	l, other := c.locker(t), c.locker(t, tier.WithWait(5*time.Second))
	const bound = 400 * time.Millisecond

	// Released by its holder: free at once.
	lease := mustAcquire(t, l, "released", tier.WithTTL(2*time.Second), tier.WithMaxHold(bound))
	start := time.Now()
	<-lease.Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrMaxHold) {
		t.Errorf("cause %v, want ErrMaxHold", cause)
	}
	if held := time.Since(start); held < bound/2 || held > 4*bound {
		t.Errorf("the context ended after %v, want %v", held, bound)
	}
	if err := lease.Renew(t.Context()); !errors.Is(err, tier.ErrMaxHold) {
		t.Errorf("a renewal past the bound: %v", err)
	}
	if _, err := other.TryAcquire(t.Context(), "released"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("granted while the holder may still work: %v", err)
	}
	if _, err := l.TryAcquire(t.Context(), "released"); !errors.Is(err, tier.ErrHeld) {
		t.Errorf("granted in the process while the holder may still work: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("release past the bound: %v", err)
	}
	next := mustAcquire(t, other, "released", tier.WithWait(time.Second))
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}

	// Never released: free when it expires.
	_ = mustAcquire(t, l, "kept", tier.WithTTL(time.Second), tier.WithMaxHold(bound))
	next = mustAcquire(t, other, "kept")
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// checkMinHold lets five processes with skewed starts try a job once a period.
func checkMinHold(t *testing.T, c *cluster) {
	const (
		processes = 5
		periods   = 6
		period    = 600 * time.Millisecond
	)
	lockers := make([]locker, processes)
	for i := range lockers {
		lockers[i] = c.locker(t)
	}
	var runs [periods]atomic.Int32
	begin := time.Now()
	var jobs sync.WaitGroup
	for i, l := range lockers {
		jobs.Go(func() {
			for p := range periods {
				start := begin.Add(time.Duration(p)*period + time.Duration(i)*30*time.Millisecond)
				time.Sleep(time.Until(start))
				lease, err := l.TryAcquire(t.Context(), "job", tier.WithMinHold(period*2/3))
				if errors.Is(err, tier.ErrHeld) {
					continue
				}
				if err != nil {
					t.Errorf("try: %v", err)
					return
				}
				runs[p].Add(1)
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	jobs.Wait()
	for p := range runs {
		if n := runs[p].Load(); n != 1 {
			t.Errorf("the job ran %d times in period %d", n, p)
		}
	}
}

func checkMaxWaiters(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithMaxWaiters(3))
	lease := mustAcquire(t, l, "k")
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	var full atomic.Int32
	for range 10 {
		waiters.Go(func() {
			_, err := l.Acquire(ctx, "k", tier.WithWait(time.Minute))
			if errors.Is(err, tier.ErrHeld) && !errors.Is(err, context.Canceled) {
				full.Add(1)
			}
		})
	}
	eventually(t, 5*time.Second, "seven turned away at once", func() bool { return full.Load() == 7 })
	cancel()
	waiters.Wait()
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
