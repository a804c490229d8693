// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// TestAcquire_everyErrorOfEveryCall_B7 fails each call of each driver with each
// class, before or after it was carried out, in each situation an acquire can
// meet. Whatever comes of the acquire, nothing is left; and no trouble of the
// filter ever decides it.
func TestAcquire_everyErrorOfEveryCall_B7(t *testing.T) {
	situations := map[string]func(t *testing.T, r *rig){
		"free": func(*testing.T, *rig) {},
		"held, and the filter forgot": func(t *testing.T, r *rig) {
			lease := r.peer(t, tier.WithTTL(time.Minute)).must(t, "k")
			r.filter.Join().Flush()
			time.AfterFunc(time.Second, func() { _ = lease.Release(context.Background()) })
		},
		"stale mark": func(t *testing.T, r *rig) {
			_, err := r.filter.Join().Mark(t.Context(), namespace+"/k", driver.Mark{Token: driver.NewToken(), TTL: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
		},
	}
	classes := []driver.Class{
		driver.ClassUnknown, driver.ClassContention, driver.ClassCaller,
		driver.ClassTransient, driver.ClassDown, driver.ClassConfig,
	}
	filterOps := []string{"checkFilter", "mark", "extend", "overwrite", "clear"}
	authorityOps := []string{"check", "look", "claim", "release"}
	for situation, arrange := range situations {
		for _, op := range append(filterOps, authorityOps...) {
			for _, class := range classes {
				for _, after := range []bool{false, true} {
					for _, times := range []int{1, 2, 1 << 30} {
						if op == "release" && times > 1 {
							continue // the driver goes on by itself
						}
						name := fmt.Sprintf("%s/%s/%s/after=%v/%d", situation, op, class, after, times)
						t.Run(name, func(t *testing.T) {
							synctest.Test(t, func(t *testing.T) {
								r := newRig(t, tier.WithTTL(ttl), tier.WithWait(5*time.Second))
								arrange(t, r)
								h := onOp(op, firstN(times, class))
								if after {
									r.calls.on(nil, h)
								} else {
									r.calls.on(h, nil)
								}
								lease, err := r.Acquire(t.Context(), "k")
								switch {
								case err == nil:
									if row := r.row(t, "k"); !row.Held || row.Token != lease.Tenure().Token { // B8
										t.Errorf("a lease with the row %+v", row)
									}
									_ = lease.Release(t.Context())
								case !errors.Is(err, tier.ErrUnavailable) && !errors.Is(err, tier.ErrHeld):
									t.Errorf("%v is neither ErrUnavailable nor ErrHeld", err)
								}
								contention := class == driver.ClassContention
								switch filterOp := op != "check" && op != "look" && op != "claim"; {
								case err != nil && filterOp:
									t.Errorf("%v, though the authority answered", err)
								case err != nil && times == 1 && class != driver.ClassConfig:
									t.Errorf("one fault, and not asked again: %v", err)
								case err != nil && contention && errors.Is(err, tier.ErrUnavailable):
									t.Errorf("contention is no fault: %v", err) // P7
								case err == nil && op == "claim" && class == driver.ClassConfig && times > 2:
									t.Error("granted by an authority that needs a person")
								}
								r.calls.on(nil, nil)
								time.Sleep(ttl + 10*time.Second) // at the worst a mark's and a row's TTL
								if n := r.filter.Join().Marks(); n != 0 {
									t.Errorf("%d marks stand", n)
								}
								if n := r.authority.Join().Held(); n != 0 {
									t.Errorf("%d rows held", n)
								}
							})
						})
					}
				}
			}
		}
	}
}

// TestAcquire_leavesNothingSoon_B7 is the same for what must be gone in a
// second: everything but a mark whose clearing failed.
func TestAcquire_leavesNothingSoon_B7(t *testing.T) {
	for _, op := range []string{"mark", "overwrite", "claim", "check"} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", op, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, tier.WithTTL(time.Hour), tier.WithWait(0))
					h := onOp(op, firstN(1<<30, driver.ClassUnknown))
					if after {
						r.calls.on(nil, h)
					} else {
						r.calls.on(h, nil)
					}
					if lease, err := r.Acquire(t.Context(), "k"); err == nil {
						if err := lease.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
					time.Sleep(time.Second)
					r.clean(t)
				})
			})
		}
	}
}

// TestAcquire_configError does not ask a server again that needs a person.
func TestAcquire_configError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		r.calls.on(onOp("claim", firstN(1<<30, driver.ClassConfig)), nil)
		start := time.Now()
		_, err := r.Acquire(t.Context(), "k", tier.WithWait(time.Minute))
		if !errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrHeld) {
			t.Errorf("%v, want ErrUnavailable and never ErrHeld", err)
		}
		if took := time.Since(start); took != 0 || r.calls.count("claim") != 1 {
			t.Errorf("%d claims in %v, want one at once", r.calls.count("claim"), took)
		}
	})
}

// TestAcquire_down_P10 gives up soon on a server that refuses, long before the
// wait ends, and says that it was no contention.
func TestAcquire_down(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		r.authority.Down()
		start := time.Now()
		_, err := r.Acquire(t.Context(), "k", tier.WithWait(time.Minute))
		if !errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrHeld) {
			t.Errorf("%v, want ErrUnavailable and never ErrHeld", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("a server that refuses was asked for %v", took)
		}
		r.authority.Up()
		lease := r.must(t, "k")
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAcquire_deadlocks_J1 is the victim of deadlocks and lock waits for a
// while: never unavailable, never lost.
func TestAcquire_deadlocks_J1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(10*time.Second))
		r.calls.on(onOp("claim", firstN(10, driver.ClassContention)), nil)
		lease := r.must(t, "k")
		r.calls.on(onOp("claim", firstN(1<<30, driver.ClassContention)), nil)
		if _, err := r.TryAcquire(t.Context(), "other"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("try: %v, want ErrHeld", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAcquire_anyInstant_B8 cancels at random instants of a slow acquire: every
// lease returned is proved by the row, every error leaves nothing.
func TestAcquire_anyInstant_B1_B8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(time.Hour), tier.WithWait(time.Hour))
		// A call takes up to 10 ms on its way and as long back, and heeds its
		// context: a reply may be abandoned, as over a network.
		slow := func(ctx context.Context, c call) error {
			if c.op == "clear" || c.op == "release" {
				return nil
			}
			timer := time.NewTimer(rand.N(10 * time.Millisecond))
			defer timer.Stop()
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		r.calls.on(slow, slow)
		granted := 0
		for range 5000 {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(50*time.Millisecond))
			lease, err := r.Acquire(ctx, "k")
			switch {
			case err == nil && lease == nil:
				t.Fatal("neither a lease nor an error")
			case err == nil:
				granted++
				if row := r.row(t, "k"); !row.Held || row.Token != lease.Tenure().Token || row.Fence < lease.Fence() {
					t.Errorf("a lease with the row %+v", row)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%v, want the context's error", err)
			}
			cancel()
			// P5: free within a second, without any TTL.
			time.Sleep(time.Second)
			r.clean(t)
			if t.Failed() {
				return
			}
		}
		if granted < 500 || granted > 4500 {
			t.Errorf("%d of 5000 granted: the instants miss the acquire", granted)
		}
	})
}

// TestAcquire_firstEver_F6 meets a hundred first callers.
func TestAcquire_firstEver_F6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		r.calls.on(onOp("check", func(context.Context, call) error { time.Sleep(50 * time.Millisecond); return nil }), nil)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				lease, err := r.Acquire(t.Context(), fmt.Sprintf("k%d", i))
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if n := r.calls.count("check"); n != 1 {
			t.Errorf("%d start-up checks of the authority, want 1", n)
		}
		if n := r.calls.count("checkFilter"); n != 1 {
			t.Errorf("%d start-up checks of the filter, want 1", n)
		}
	})
}

// TestAcquire_fullTimeAfterAWait_E6 waits two TTLs for the key: the lease has
// its whole time before it.
func TestAcquire_fullTimeAfterAWait_E6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		held := r.peer(t, tier.WithTTL(ttl)).must(t, "k")
		time.AfterFunc(2*ttl, func() { _ = held.Release(context.Background()) })
		start := time.Now()
		lease := r.must(t, "k")
		if waited := time.Since(start); waited < 2*ttl {
			t.Fatalf("granted after %v", waited)
		}
		if left := time.Until(lease.Deadline()); left < ttl-margin {
			t.Errorf("%v left after a wait, want %v", left, ttl-margin)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAcquire_lateGrant_D2 gets a grant whose time was used up on the way: it
// is given back, not returned.
func TestAcquire_lateGrant_D2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		r.calls.on(nil, onOp("claim", func(_ context.Context, c call) error {
			if c.n == 1 {
				time.Sleep(ttl - margin)
			}
			return nil
		}))
		lease := r.must(t, "k")
		if n := r.calls.count("claim"); n != 2 {
			t.Errorf("%d claims, want a second one", n)
		}
		if left := time.Until(lease.Deadline()); left != ttl-margin {
			t.Errorf("%v left, want %v", left, ttl-margin)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		r.clean(t)
	})
}

// TestAcquire_retryAfter tells how long the holder still has.
func TestAcquire_retryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		held := r.peer(t, tier.WithTTL(time.Minute)).must(t, "k")
		_, err := r.TryAcquire(t.Context(), "k")
		var typed *tier.Error
		if !errors.As(err, &typed) || !errors.Is(err, tier.ErrHeld) {
			t.Fatalf("%v, want ErrHeld in a *tier.Error", err)
		}
		if typed.RetryAfter != time.Minute {
			t.Errorf("retry after %v, want 1m", typed.RetryAfter)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAcquire_flaggedMarkAfterTheGrant gives a grant back that meets a flagged
// mark: others work there without the authority.
func TestAcquire_flaggedMarkAfterTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(10*time.Second))
		stale := driver.Mark{Token: driver.NewToken(), TTL: time.Hour}
		if _, err := r.filter.Join().Mark(t.Context(), namespace+"/k", stale); err != nil {
			t.Fatal(err)
		}
		r.calls.on(onOp("overwrite", func(_ context.Context, c call) error {
			r.calls.on(nil, nil)
			r.filter.Join().Flush()
			_, err := r.filter.Join().Mark(t.Context(), namespace+"/k", driver.Mark{Token: driver.NewToken(), TTL: 2 * time.Second, Flagged: true})
			return err
		}), nil)
		start := time.Now()
		lease := r.must(t, "k")
		if waited := time.Since(start); waited < 2900*time.Millisecond {
			t.Errorf("granted after %v, past a flagged mark", waited)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		r.clean(t)
	})
}

// TestAcquire_cancelledAtOverwrite_B1 cancels between the grant and the mark
// that follows it: the row does not wait for its TTL.
func TestAcquire_cancelledAtOverwrite_B1(t *testing.T) {
	for _, arrived := range []bool{false, true} {
		t.Run(fmt.Sprintf("arrived=%v", arrived), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(time.Hour), tier.WithWait(time.Minute))
				stale := driver.Mark{Token: driver.NewToken(), TTL: 2 * time.Second}
				if _, err := r.filter.Join().Mark(t.Context(), namespace+"/k", stale); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				h := onOp("overwrite", func(ctx context.Context, _ call) error {
					cancel()
					return ctx.Err()
				})
				if arrived {
					r.calls.on(nil, h)
				} else {
					r.calls.on(h, nil)
				}
				if lease, err := r.Acquire(ctx, "k"); !errors.Is(err, context.Canceled) || lease != nil {
					t.Errorf("%v, %v; want the context's error", lease, err)
				}
				if r.calls.count("overwrite") != 1 {
					t.Error("no mark was overwritten: the test tests nothing")
				}
				time.Sleep(2 * time.Second) // the stale mark's own time
				r.clean(t)
			})
		})
	}
}

// TestAcquire_silentAfterHeld_P10 waits for a holder until the authority falls
// silent: nobody knows then that the key is held.
func TestAcquire_silentAfterHeld_P10(t *testing.T) {
	for name, fail := range map[string]func(*rig){
		"silent": func(r *rig) { r.authority.Silence() },
		"down":   func(r *rig) { r.authority.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(time.Hour))
				held := r.peer(t, tier.WithTTL(time.Hour)).must(t, "k")
				time.AfterFunc(2*time.Second, func() { fail(r) })
				_, err := r.Acquire(t.Context(), "k", tier.WithWait(20*time.Second))
				if !errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrHeld) {
					t.Errorf("%v, want ErrUnavailable and not ErrHeld", err)
				}
				var typed *tier.Error
				if errors.As(err, &typed) && typed.RetryAfter != 0 {
					t.Errorf("retry after %v, which nobody knows", typed.RetryAfter)
				}
				r.authority.Up()
				if err := held.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
