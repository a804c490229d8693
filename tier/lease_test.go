// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// TestLease_manyGoroutines_F1_F7 uses one handle from fifty goroutines, and
// releases it in another than the one that acquired it.
func TestLease_manyGoroutines_F1_F7(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 50 {
		lease := r.must(t, "k")
		fence := lease.Fence()
		var all sync.WaitGroup
		released := make(chan error, 50)
		for i := range 50 {
			all.Go(func() {
				_ = lease.Err()
				_ = lease.Deadline()
				_ = lease.Context().Err()
				if lease.Fence() != fence || lease.Key() != "k" || lease.Holder() == "" || lease.Level() != tier.LevelFull {
					t.Error("the lease changed")
				}
				if err := lease.Renew(t.Context()); err != nil {
					t.Errorf("renew: %v", err)
				}
				if i%10 == 9 {
					released <- lease.Release(t.Context())
				}
				<-lease.Done()
			})
		}
		all.Wait()
		close(released)
		for err := range released {
			if err != nil {
				t.Errorf("release: %v", err)
			}
		}
	}
	// The mark is cleared behind the release.
	for end := time.Now().Add(time.Second); r.filter.Marks() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	r.clean(t)
}

// TestLease_callback_G8 reacts to a loss by calling back into the lock, and
// blocks there.
func TestLease_callback_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		lease := r.must(t, "k")
		other := r.must(t, "other")
		called := make(chan error, 1)
		context.AfterFunc(lease.Context(), func() {
			_, _, _ = lease.Err(), lease.Deadline(), lease.Tenure()
			err := lease.Release(context.Background())
			if errors.Is(err, tier.ErrLost) {
				err = nil
			}
			next, acquireErr := r.Acquire(context.Background(), "k")
			if acquireErr == nil {
				time.Sleep(10 * ttl)
				acquireErr = next.Release(context.Background())
			}
			called <- errors.Join(err, acquireErr)
		})
		r.authority.Revoke()
		// The callback's Release may have come before Verify's answer.
		if err := lease.Verify(t.Context()); !errors.Is(err, tier.ErrLost) && !errors.Is(err, context.Canceled) {
			t.Errorf("verify: %v, want ErrLost", err)
		}
		if err := <-called; err != nil {
			t.Errorf("from the callback: %v", err)
		}
		if err := other.Err(); !errors.Is(err, tier.ErrLost) { // revoked as well, and noticed meanwhile
			t.Errorf("the renewals stood still behind the callback: %v", err)
		}
		_ = other.Release(t.Context())
	})
}

// TestLease_Err_looksAtTheClock asks before any timer has run, as a process
// does that was stopped (P4). With one processor a goroutine that does not wait
// keeps the timers from running.
func TestLease_Err_looksAtTheClock(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := newRig(t, tier.WithTTL(500*time.Millisecond))
	r.calls.on(onOp("renew", func(_ context.Context, c call) error { return fault(c.op, driver.ClassDown) }), nil)
	for i := range 3 {
		lease := r.must(t, fmt.Sprintf("k%d", i))
		time.Sleep(time.Until(lease.Deadline()) - 2*time.Millisecond)
		for deadline := lease.Deadline(); time.Now().Before(deadline); {
			continue // no waiting
		}
		if err := lease.Err(); !errors.Is(err, tier.ErrLost) {
			t.Errorf("Err at the deadline: %v, want ErrLost", err)
		}
		select {
		case <-lease.Done():
		default:
			t.Error("Done is open after the deadline")
		}
		_ = lease.Release(t.Context())
	}
}

// TestLease_Deadline_monotonic_D9 carries Go's monotonic reading, so that a
// step of the wall clock moves nothing.
func TestLease_Deadline_monotonic_D9(t *testing.T) {
	t.Parallel()
	r := newRig(t, tier.WithTTL(time.Hour))
	lease := r.must(t, "k")
	check := func(what string) {
		if d := lease.Deadline(); !strings.Contains(d.String(), " m=") {
			t.Errorf("%s: deadline %v has no monotonic reading", what, d)
		}
	}
	check("granted")
	if err := lease.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("renewed")
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLease_Verify tells what the authority says.
func TestLease_Verify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		if err := lease.Verify(t.Context()); err != nil {
			t.Errorf("held: %v", err)
		}
		r.authority.Down()
		if err := lease.Verify(t.Context()); !errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrLost) {
			t.Errorf("down: %v, want ErrUnavailable", err)
		}
		if err := lease.Err(); err != nil {
			t.Errorf("a failed Verify ended the lease: %v", err)
		}
		r.authority.Up()
		token := r.row(t, "k").Token
		if err := r.authority.Join().Release(t.Context(), driver.Release{Key: namespace + "/k", Token: token}); err != nil {
			t.Fatal(err)
		}
		err := lease.Verify(t.Context())
		var loss *driver.Loss
		if !errors.Is(err, tier.ErrLost) || !errors.As(err, &loss) || loss.Reason != driver.LossFreed {
			t.Errorf("freed: %v, want ErrLost, freed", err)
		}
		if _, err := lease.Prove(); err != nil {
			t.Errorf("Prove before Release: %v, want nil: the server judges", err)
		}
		_ = lease.Release(t.Context())
		if _, err := lease.Prove(); !errors.Is(err, tier.ErrLost) {
			t.Errorf("Prove after Release: %v, want ErrLost", err)
		}
	})
}

// TestLease_contextValues keeps the values of the acquire's context and
// nothing else of it.
func TestLease_contextValues(t *testing.T) {
	t.Parallel()
	type key struct{}
	r := newRig(t)
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Minute)
	lease, err := r.Acquire(ctx, "k")
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	if got := lease.Context().Value(key{}); got != "v" {
		t.Errorf("value %v", got)
	}
	if _, has := lease.Context().Deadline(); has {
		t.Error("the acquire's deadline bounds the lease")
	}
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the acquire's end ended the lease: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A grant calls nothing of the user's on the caller's goroutine: what panics
// there would leave a lease that nobody has.
func TestAcquire_redactorIsNotCalledByTheCaller_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority(), tier.WithLogger(zap.NewNop()),
			tier.WithKeyRedactor(func(string) string { panic("a redactor that cannot take this key") }))
		lease, err := r.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		r.clean(t)
	})
}
