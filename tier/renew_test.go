// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// Tests in a synctest bubble measure the clock of the bubble, which stands
// still while anybody works: what they say about times is exact.

const ttl = 3 * time.Second

// margin is what a lease of ttl gives up before its expiry.
const margin = ttl / 10

// lostLogged counts what the log calls a loss.
func (r *rig) lostLogged() int { return r.log.FilterMessage("lease lost").Len() }

func TestRenewal_stopsAtRelease_A1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		r.calls.on(
			onOp("renew", func(ctx context.Context, _ call) error { time.Sleep(rand.N(20 * time.Millisecond)); return nil }),
			onOp("renew", func(ctx context.Context, _ call) error { time.Sleep(rand.N(20 * time.Millisecond)); return nil }))
		var workers sync.WaitGroup
		for w := range 4 {
			workers.Go(func() {
				for range 2500 {
					lease, err := r.Acquire(t.Context(), fmt.Sprintf("k%d", w%2))
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					// Mostly around the moment of the first renewal.
					time.Sleep(rand.N(ttl/3 + 100*time.Millisecond))
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
		workers.Wait()
		synctest.Wait()
		if r.calls.count("renew") == 0 {
			t.Error("no renewal ever met a release: the test tests nothing")
		}
		renewals, refreshes := r.calls.count("renew"), r.calls.count("refresh")
		time.Sleep(10 * ttl)
		if n := r.calls.count("renew") - renewals; n != 0 {
			t.Errorf("%d renewals after the last release", n)
		}
		if n := r.calls.count("refresh") - refreshes; n != 0 {
			t.Errorf("%d marks refreshed after the last release", n)
		}
		r.clean(t)
		if n := r.lostLogged(); n != 0 {
			t.Errorf("%d losses logged", n)
		}
	})
}

func TestRenewal_afterAnError_A2(t *testing.T) {
	for _, class := range []driver.Class{driver.ClassUnknown, driver.ClassDown, driver.ClassTransient, driver.ClassContention} {
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl))
				r.calls.on(onOp("renew", firstN(1, class)), nil)
				first := r.must(t, "k")
				time.Sleep(ttl / 2)
				if r.calls.count("renew") == 0 {
					t.Fatal("no renewal within half a TTL")
				}
				if err := first.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				second := r.must(t, "k")
				if second.Fence() <= first.Fence() {
					t.Errorf("fence %d after %d", second.Fence(), first.Fence())
				}
				time.Sleep(3 * ttl)
				if err := second.Err(); err != nil {
					t.Errorf("the key was not renewed after one error: %v", err)
				}
				if err := second.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestRenewal_manyLeases_A5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		r := newRig(t, tier.WithTTL(ttl))
		leases := make([]*tier.Lease, n)
		for i := range leases {
			leases[i] = r.must(t, fmt.Sprintf("k%d", i))
		}
		before := r.calls.count("renew")
		time.Sleep(3 * ttl)
		lost := 0
		for _, lease := range leases {
			if lease.Err() != nil {
				lost++
			}
			if left := time.Until(lease.Deadline()); left <= 0 || left > ttl {
				t.Fatalf("%v left of a TTL of %v", left, ttl)
			}
		}
		if lost > 0 {
			t.Errorf("%d of %d leases lost", lost, n)
		}
		t.Logf("%d requests renewed %d leases for three TTLs", r.calls.count("renew")-before, n)
		for _, lease := range leases {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		r.clean(t)
	})
}

// TestRenewal_unanswered_A10_A17 fails renewals for a while that a lease can
// bear: it is not lost.
func TestRenewal_unanswered_A10_A17(t *testing.T) {
	for name, class := range map[string]driver.Class{
		"down": driver.ClassDown, "unknown": driver.ClassUnknown, "transient": driver.ClassTransient,
		"contention": driver.ClassContention, "config": driver.ClassConfig, "caller": driver.ClassCaller,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl))
				lease := r.must(t, "k")
				outage := time.Now().Add(2 * ttl / 3) // two thirds: TTL/3 after the first renewal is due
				r.calls.on(onOp("renew", func(_ context.Context, c call) error {
					if time.Now().Before(outage) {
						return fault(c.op, class)
					}
					return nil
				}), nil)
				time.Sleep(3 * ttl)
				if r.calls.count("renew") < 3 {
					t.Error("the renewals were not repeated")
				}
				if err := lease.Err(); err != nil {
					t.Errorf("lost through an outage shorter than the TTL: %v", err)
				}
				if r.lostLogged() != 0 {
					t.Error("a loss was logged")
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRenewal_deadline_A10_D9_E7 never answers a renewal: the holder learns of
// the loss at the deadline, which counts from before the claim was sent.
func TestRenewal_deadline_A10_D9_E7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 200 * time.Millisecond
		r := newRig(t, tier.WithTTL(ttl))
		r.calls.on(
			func(_ context.Context, c call) error {
				switch c.op {
				case "claim":
					time.Sleep(slow) // on its way
				case "renew":
					return fault(c.op, driver.ClassDown)
				}
				return nil
			},
			onOp("claim", func(context.Context, call) error { time.Sleep(slow); return nil }))
		lease := r.must(t, "k")
		// The drivers' part of the rule is theirs to test: the in-memory
		// authority takes the time after the first delay.
		sent := time.Now().Add(-slow)
		if want := sent.Add(ttl - margin); !lease.Deadline().Equal(want) {
			t.Errorf("deadline %v, want %v", lease.Deadline().Sub(sent), want.Sub(sent))
		}
		<-lease.Context().Done()
		if at := time.Since(sent); at != ttl-margin {
			t.Errorf("the context ended %v after the claim, want %v", at, ttl-margin)
		}
		if row := r.row(t, "k"); !row.Held || row.Left != margin {
			t.Errorf("at the loss the row is %+v; want held for the margin, %v", row, margin)
		}
		if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrLost) {
			t.Errorf("cause %v, want ErrLost", cause)
		}
		synctest.Wait() // the holder learns first, the log after
		if r.lostLogged() != 1 {
			t.Errorf("%d losses logged, want 1", r.lostLogged())
		}
		r.calls.on(nil, nil)
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release of a row that was still there: %v", err)
		}
	})
}

func TestRenewal_replyAfterRelease_A12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		held := make(chan struct{})
		r.calls.on(nil, onOp("renew", func(context.Context, call) error { <-held; return nil }))
		lease := r.must(t, "k")
		for r.calls.count("renew") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		start := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release behind a renewal that hangs: %v", err)
		}
		if waited := time.Since(start); waited != 0 { // A9
			t.Errorf("the release waited %v for the renewal", waited)
		}
		synctest.Wait()
		close(held)
		time.Sleep(5 * ttl)
		if n := r.calls.count("renew"); n != 1 {
			t.Errorf("%d renewals, want the one before the release", n)
		}
		if n := r.calls.count("refresh"); n != 0 {
			t.Errorf("%d refreshes of a mark that was given back", n)
		}
		if r.lostLogged() != 0 {
			t.Error("a normal release was logged as a loss") // A16
		}
		r.clean(t)
	})
}

// TestRenew_meetsRelease_A11 lets a release overtake a Renew on its way: what
// the server then says is the release's doing, and no trouble.
func TestRenew_meetsRelease_A11(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		r.calls.on(onOp("renew", func(context.Context, call) error {
			if err := lease.Release(context.Background()); err != nil {
				t.Errorf("release: %v", err)
			}
			return nil
		}), nil)
		if err := lease.Renew(t.Context()); err != nil {
			t.Errorf("renew: %v, want nil", err)
		}
		if row := r.row(t, "k"); row.Held {
			t.Error("the renewal brought the row back")
		}
	})
}

func TestRenewal_atThePeriodBoundary_A13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		for i := range 100 {
			lease := r.must(t, "k")
			// Releases from before the earliest to after the latest renewal.
			time.Sleep(ttl/3*9/10 - 5*time.Millisecond + time.Duration(i)*ttl/3*2/10/90)
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := r.must(t, "k")
			time.Sleep(ttl + time.Second)
			if err := next.Err(); err != nil {
				t.Fatalf("round %d: a lease granted right after a release was not renewed: %v", i, err)
			}
			if err := next.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRenewal_remaining_A15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		for end := time.Now().Add(10 * ttl); time.Now().Before(end); time.Sleep(37 * time.Millisecond) {
			if left := time.Until(lease.Deadline()); left <= 0 || left > ttl-margin {
				t.Fatalf("%v left, want within (0, %v]", left, ttl-margin)
			}
		}
		// A third of the TTL, less a tenth of that at most.
		if n := r.calls.count("renew"); n < 26 || n > 34 {
			t.Errorf("%d renewals in ten TTLs, want about 30", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRenewal_fromTheDead_E9 lets an answer arrive after the deadline: nobody
// will use the lease, so its row must not stand for another TTL.
func TestRenewal_fromTheDead_E9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		// The one renewal that reaches the server answers too late; the others
		// never get there.
		r.calls.on(
			onOp("renew", func(_ context.Context, c call) error {
				if c.n > 1 {
					return fault(c.op, driver.ClassDown)
				}
				return nil
			}),
			onOp("renew", func(context.Context, call) error {
				time.Sleep(time.Until(lease.Deadline()) + time.Millisecond)
				return nil
			}))
		<-lease.Context().Done()
		if !r.row(t, "k").Held {
			t.Fatal("the renewal did not reach the server: the test tests nothing")
		}
		time.Sleep(100 * time.Millisecond)
		r.clean(t)
		next := r.must(t, "k", tier.WithWait(0))
		if next.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
		}
		_ = lease.Release(t.Context()) // what it answers is not the subject
		if err := next.Verify(t.Context()); err != nil {
			t.Errorf("the late release hit the successor: %v", err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRenewal_busy renews a row that a guarded transaction has locked: it asks
// again soon, and never calls it a loss.
func TestRenewal_busy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		var first, last time.Time
		r.calls.on(onOp("renew", func(context.Context, call) error {
			if first.IsZero() {
				first = time.Now()
			}
			if time.Since(first) > 500*time.Millisecond {
				last = time.Now()
				return nil
			}
			return &driver.Refusal{Busy: true}
		}), nil)
		time.Sleep(ttl * 3 / 4)
		if n := r.calls.count("renew"); n < 10 || n > 13 {
			t.Errorf("%d renewals, want one every 50ms for half a second", n)
		}
		if last.IsZero() || lease.Err() != nil {
			t.Errorf("not renewed after the row was free: %v", lease.Err())
		}
		r.calls.on(onOp("renew", func(_ context.Context, c call) error { return &driver.Refusal{Busy: true} }), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := lease.Renew(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, tier.ErrLost) {
			t.Errorf("Renew of a busy row: %v, want the context's error", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRenew_noAnswer keeps Renew's promise P10 for an authority that is down.
func TestRenew_noAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		r.authority.Down()
		if err := lease.Renew(t.Context()); !errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrLost) {
			t.Errorf("down: %v, want ErrUnavailable", err)
		}
		r.authority.Up()
		r.authority.Silence()
		start := time.Now()
		if err := lease.Renew(t.Context()); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("silent: %v, want ErrUnavailable", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("Renew took %v, at most 1s is promised", took)
		}
		r.authority.Up()
		before := lease.Deadline()
		if err := lease.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		if !lease.Deadline().After(before) {
			t.Error("Renew did not move the deadline")
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := lease.Renew(t.Context()); err != nil {
			t.Errorf("Renew after Release: %v, want nil", err)
		}
	})
}

// TestRelease_meetsTheRenewer_A9 releases thousands of leases at the moments at
// which they are due for renewal: neither waits for the other.
func TestRelease_meetsTheRenewer_A9(t *testing.T) {
	l, err := tier.New(nil, tiertest.NewAuthority(), tier.WithTTL(600*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	const n = 5000
	var holders sync.WaitGroup
	for i := range n {
		holders.Go(func() {
			lease, err := l.Acquire(t.Context(), strconv.Itoa(i))
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(180*time.Millisecond + rand.N(40*time.Millisecond))
			if err := lease.Release(t.Context()); err != nil && !errors.Is(err, tier.ErrLost) {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		holders.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("releases and renewals wait for each other:\n%s", buf[:runtime.Stack(buf, true)])
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
