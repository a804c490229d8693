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
	"github.com/tierlock/tierlock/tier/driver"
)

// TestRelease_afterLostRenewalReply_A6 releases while the server has renewed
// and nobody knows.
func TestRelease_afterLostRenewalReply_A6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		r.calls.on(nil, onOp("renew", firstN(1, driver.ClassUnknown)))
		lease := r.must(t, "k")
		for r.calls.count("renew") == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		synctest.Wait()
		r.clean(t)
	})
}

// TestRelease_whileRenewing_A7_A16 ends the acquire's context and releases
// while a renewal is under way.
func TestRelease_whileRenewing_A7_A16(t *testing.T) {
	for name, arrived := range map[string]bool{"before the server has it": false, "after the server has it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl))
				hold := onOp("renew", func(context.Context, call) error { time.Sleep(300 * time.Millisecond); return nil })
				if arrived {
					r.calls.on(nil, hold)
				} else {
					r.calls.on(hold, nil)
				}
				parent, cancel := context.WithCancel(t.Context())
				lease, err := r.Acquire(parent, "k")
				if err != nil {
					t.Fatal(err)
				}
				for r.calls.count("renew") == 0 {
					time.Sleep(50 * time.Millisecond)
				}
				cancel()
				synctest.Wait()
				if err := lease.Err(); err != nil {
					t.Errorf("the acquire's context ended the lease: %v", err)
				}
				if err := lease.Release(context.Background()); err != nil {
					t.Errorf("release: %v", err)
				}
				if r.authority.Held() != 0 {
					t.Error("the row was not released")
				}
				time.Sleep(ttl)
				if r.lostLogged() != 0 {
					t.Error("a normal release was reported as a loss")
				}
				if cause := context.Cause(lease.Context()); !errors.Is(cause, context.Canceled) || errors.Is(cause, tier.ErrLost) {
					t.Errorf("cause %v, want context.Canceled", cause)
				}
				r.clean(t)
			})
		})
	}
}

// TestRelease_racesRenew_A11 lets the two meet on real goroutines.
func TestRelease_racesRenew_A11(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 10_000 {
		lease := r.must(t, "k")
		var race sync.WaitGroup
		race.Go(func() {
			for range 2 {
				if err := lease.Renew(t.Context()); err != nil {
					t.Errorf("renew: %v, want nil", err)
				}
			}
		})
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		race.Wait()
		if row := r.row(t, "k"); row.Held {
			t.Fatal("a renewal brought a released row back")
		}
	}
}

// TestRelease_authorityCut_C7 cuts the authority under a release: this process
// too gets the key again, with a higher fence, and not before it is free.
func TestRelease_authorityCut_C7(t *testing.T) {
	for name, cut := range map[string]func(*rig){
		"silent": func(r *rig) { r.authority.Silence() },
		"down":   func(r *rig) { r.authority.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl))
				lease := r.must(t, "k")
				cut(r)
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				start := time.Now()
				if err := lease.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("release: %v, want the context's error", err)
				}
				if took := time.Since(start); took > 200*time.Millisecond {
					t.Errorf("release took %v", took)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("second release: %v, want nil", err)
				}
				r.authority.Up()
				next := r.must(t, "k", tier.WithWait(ttl))
				if next.Fence() <= lease.Fence() {
					t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
				}
				time.Sleep(time.Second)
				if err := next.Verify(t.Context()); err != nil { // C1: not by our own late release
					t.Errorf("the release behind hit the successor: %v", err)
				}
				if err := next.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRelease_answers_C2_C3 tells why a lease was lost.
func TestRelease_answers_C2_C3(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, r *rig)
		want driver.LossReason
	}{
		"expired": {func(t *testing.T, r *rig) { time.Sleep(ttl) }, driver.LossExpired},
		"taken": {func(t *testing.T, r *rig) {
			peer := r.peer(t, tier.WithWait(time.Minute))
			next := peer.must(t, "k")
			t.Cleanup(func() {
				if err := next.Release(context.Background()); err != nil {
					t.Errorf("the successor was hit: %v", err)
				}
			})
		}, driver.LossTaken},
		"freed": {func(t *testing.T, r *rig) {
			token := r.row(t, "k").Token
			if err := r.authority.Join().Release(t.Context(), driver.Release{Key: namespace + "/k", Token: token}); err != nil {
				t.Fatal(err)
			}
		}, driver.LossFreed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl))
				lease := r.must(t, "k")
				r.calls.on(onOp("renew", func(_ context.Context, c call) error { return fault(c.op, driver.ClassDown) }), nil)
				c.lose(t, r)
				err := lease.Release(t.Context())
				var loss *driver.Loss
				if !errors.Is(err, tier.ErrLost) || !errors.As(err, &loss) {
					t.Fatalf("release: %v, want ErrLost with a reason", err)
				}
				if loss.Reason != c.want {
					t.Errorf("reason %q, want %q", loss.Reason, c.want)
				}
				if loss.Fence < lease.Fence() {
					t.Errorf("row fence %d below ours, %d", loss.Fence, lease.Fence())
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("second release: %v, want nil", err)
				}
			})
		})
	}
}

// TestRelease_afterDeadline_B5 frees the row whatever had ended the context.
func TestRelease_afterDeadline_B5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		r.calls.on(onOp("renew", func(_ context.Context, c call) error { return fault(c.op, driver.ClassDown) }), nil)
		<-lease.Done()
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lease.Release(dead); err != nil {
			t.Errorf("release within the margin: %v, want nil: it freed the row", err)
		}
		synctest.Wait()
		r.clean(t)
	})
}

// TestRelease_filterDown_K6 leaves the mark to its time to live.
func TestRelease_filterDown_K6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		r.filter.Down()
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release with the filter down: %v", err)
		}
		if r.authority.Held() != 0 {
			t.Error("the row was not released")
		}
		synctest.Wait()
		if r.log.FilterMessage("call failed").Len() != 1 {
			t.Errorf("the failure was not logged once: %v", r.log.All())
		}
	})
}
