// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// plant puts a foreign mark into the filter, as a process did that died
// between the tiers.
func (c *cluster) plant(t *testing.T, key string, flagged bool, ttl time.Duration) {
	t.Helper()
	node := c.Node(t)
	t.Cleanup(func() { _ = node.Filter.Close(context.Background()); _ = node.Authority.Close(context.Background()) })
	state, err := node.Filter.Mark(t.Context(), "suite/"+key, driver.Mark{Token: driver.NewToken(), TTL: ttl, Flagged: flagged})
	if err != nil || !state.Ours {
		t.Fatalf("planting a mark: %+v, %v", state, err)
	}
}

func checkStaleMark(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithWait(10*time.Second))
	c.plant(t, "k", false, time.Minute)
	start := time.Now()
	lease := mustAcquire(t, l, "k")
	if waited := time.Since(start); waited > 2*time.Second || waited < 500*time.Millisecond {
		t.Errorf("a stale mark delayed a free key by %v, want about a second", waited)
	}
	if lease.Level() != tier.LevelFull {
		t.Errorf("level %s: the grant did not overwrite the stale mark", lease.Level())
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, 2*time.Second, "no mark left", func() bool { return c.Marks(t) == 0 })
}

func checkStaleMarkByTrying(t *testing.T, c *cluster) {
	l := c.locker(t)
	c.plant(t, "k", false, time.Minute)
	if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Fatalf("first try: %v, want ErrHeld", err)
	}
	time.Sleep(time.Second)
	lease, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("a try a second later: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func checkFlaggedMark(t *testing.T, c *cluster) {
	l := c.locker(t)
	c.plant(t, "k", true, 2500*time.Millisecond)
	if _, err := l.Acquire(t.Context(), "k", tier.WithWait(1500*time.Millisecond)); !errors.Is(err, tier.ErrHeld) {
		t.Fatalf("past a flagged mark: %v, want ErrHeld", err)
	}
	lease := mustAcquire(t, l, "k", tier.WithWait(5*time.Second)) // and no longer than its TTL
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// took fails the test when more than limit and P10's 100 ms have passed.
func took(t *testing.T, what string, start time.Time, limit time.Duration) {
	t.Helper()
	if d := time.Since(start); d > limit+100*time.Millisecond {
		t.Errorf("%s took %v, at most %v are promised", what, d, limit+100*time.Millisecond)
	}
}

func checkSilentAuthority(t *testing.T, c *cluster) {
	l := c.locker(t)
	defer l.SilenceAuthority()()

	start := time.Now()
	if _, err := l.Acquire(t.Context(), "k", tier.WithWait(300*time.Millisecond)); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("acquire: %v, want ErrUnavailable", err)
	}
	took(t, "an acquire with a wait of 300ms", start, 300*time.Millisecond)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start = time.Now()
	if _, err := l.Acquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: %v, want the context's error", err)
	}
	took(t, "an acquire with a context of 200ms", start, 200*time.Millisecond)

	start = time.Now()
	if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("try: %v, want ErrUnavailable", err)
	}
	took(t, "a try", start, time.Second)
}

// checkSilentAuthorityForMany bounds the calls of several keys, also where one
// of them is held already when the authority falls silent.
func checkSilentAuthorityForMany(t *testing.T, c *cluster) {
	l, other := c.locker(t, tier.WithWait(300*time.Millisecond)), c.locker(t)
	defer l.SilenceAuthority()()

	start := time.Now()
	if _, err := l.AcquireAll(t.Context(), "a", "b"); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("acquire all: %v, want ErrUnavailable", err)
	}
	took(t, "an AcquireAll with a wait of 300ms", start, 300*time.Millisecond)

	start = time.Now()
	if _, err := l.AcquireAny(t.Context(), "a", "b"); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("acquire any: %v, want ErrUnavailable", err)
	}
	took(t, "an AcquireAny with a wait of 300ms", start, 300*time.Millisecond)

	blocker := mustAcquire(t, other, "z")
	half := c.locker(t)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	restore := make(chan func(), 1)
	time.AfterFunc(150*time.Millisecond, func() { restore <- half.SilenceAuthority() })
	start = time.Now()
	if _, err := half.AcquireAll(ctx, "y", "z"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire all: %v, want the context's error", err)
	}
	took(t, "an AcquireAll with a context of 400ms", start, 400*time.Millisecond)
	(<-restore)()
	if err := blocker.Release(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, 3*time.Second, "nothing held", func() bool { return c.Held(t) == 0 })
}

func checkSilentFilter(t *testing.T, c *cluster) {
	l := c.locker(t)
	defer l.SilenceFilter()()
	start := time.Now()
	lease, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("with the filter silent: %v", err)
	}
	took(t, "a try", start, time.Second)
	if lease.Level() != tier.LevelAuthority {
		t.Errorf("level %s, want authority", lease.Level())
	}
	start = time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	took(t, "a release", start, time.Second)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start = time.Now()
	if _, err := l.Acquire(ctx, "other"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: %v, want the context's error", err)
	}
	took(t, "an acquire with a context of 50ms", start, 50*time.Millisecond)
}

func checkSilentRelease(t *testing.T, c *cluster) {
	l := c.locker(t, tier.WithTTL(2*time.Second))
	lease := mustAcquire(t, l, "k")
	other := mustAcquire(t, l, "other")
	restore := l.SilenceAuthority()
	defer restore()

	start := time.Now()
	if err := lease.Verify(t.Context()); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("verify: %v, want ErrUnavailable", err)
	}
	took(t, "a verify", start, time.Second)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start = time.Now()
	if err := lease.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("release: %v, want the context's error", err)
	}
	took(t, "a release with a context of 100ms", start, 100*time.Millisecond)

	start = time.Now()
	if err := other.Release(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("release: %v, want the context's error", err)
	}
	took(t, "a release", start, time.Second)
	restore()
	eventually(t, 3*time.Second, "both released behind", func() bool { return c.Held(t) == 0 })
}

// checkFilterOut holds on while the filter is silent, forgets, and comes back.
func checkFilterOut(t *testing.T, c *cluster) {
	a, b := c.locker(t), c.locker(t)
	lease := mustAcquire(t, a, "k")
	c.Flush(t)
	if _, err := b.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Fatalf("the filter forgot, and the authority granted: %v", err)
	}
	// E1: the loser has taken its mark away again.
	eventually(t, 2*time.Second, "the loser's mark gone", func() bool { return c.Marks(t) == 0 })
	restore := b.SilenceFilter()
	if _, err := b.TryAcquire(t.Context(), "k"); !errors.Is(err, tier.ErrHeld) {
		t.Fatalf("with the filter silent: %v, want ErrHeld", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := mustAcquire(t, b, "k")
	if next.Level() != tier.LevelAuthority {
		t.Errorf("level %s, want authority", next.Level())
	}
	restore()
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
	full := mustAcquire(t, b, "k2")
	if full.Level() != tier.LevelFull {
		t.Errorf("level %s after the filter came back, want full", full.Level())
	}
	if err := full.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
