// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// TestWait_releaseBeforeSubscription_G1 releases in the window between the
// failed try and the subscription, where no message can be heard.
func TestWait_releaseBeforeSubscription_G1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(time.Minute), tier.WithWait(30*time.Second))
		holder := r.peer(t, tier.WithTTL(time.Minute))
		held := holder.must(t, "k")
		r.calls.on(onOp("wakeups", func(context.Context, call) error {
			if err := held.Release(context.Background()); err != nil {
				t.Errorf("release: %v", err)
			}
			synctest.Wait() // the message is out
			return nil
		}), nil)
		start := time.Now()
		lease := r.must(t, "k")
		if waited := time.Since(start); waited > 100*time.Millisecond {
			t.Errorf("the release before the subscription was noticed after %v", waited)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestWait_deaf_G9 never hears a message: the poll alone finds a free key, in
// at most its cap.
func TestWait_deaf_G9(t *testing.T) {
	for name, deafen := range map[string]func(*rig){
		"filter out":        func(r *rig) { r.filter.Down() },
		"messages are lost": func(r *rig) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(time.Minute), tier.WithWait(time.Minute))
				holder := r.peer(t, tier.WithTTL(time.Minute))
				for i := range 20 {
					held := holder.must(t, "k")
					deafen(r)
					got := make(chan time.Duration, 1)
					go func() {
						lease, err := r.Acquire(t.Context(), "k")
						if err != nil {
							t.Errorf("acquire: %v", err)
							got <- 0
							return
						}
						at := time.Now()
						if err := lease.Release(t.Context()); err != nil {
							t.Error(err)
						}
						got <- time.Duration(at.UnixNano())
					}()
					time.Sleep(time.Duration(i) * 250 * time.Millisecond)
					// Free on the authority, and nobody says so.
					row := holder.row(t, "k")
					if err := holder.authority.Join().Release(t.Context(), driver.Release{Key: namespace + "/k", Token: row.Token}); err != nil {
						t.Fatal(err)
					}
					holder.filter.Join().Flush()
					freed := time.Now()
					if waited := (<-got) - time.Duration(freed.UnixNano()); waited > time.Second {
						t.Errorf("a free key was found after %v, at most 1s is promised", waited)
					}
					_ = held.Release(t.Context()) // gone, as made sure above
					r.filter.Up()
				}
			})
		})
	}
}

// TestWait_onlyTheHeadAsks_H5 lets a thousand goroutines of one process want
// one key.
func TestWait_onlyTheHeadAsks_H5_G2(t *testing.T) {
	t.Parallel()
	r := newRig(t, tier.WithWait(time.Minute), tier.WithHandoffs(1))
	var inFlight, most atomic.Int32
	enter := onOp("", func(_ context.Context, c call) error {
		if c.op == "mark" || c.op == "claim" || c.op == "extend" || c.op == "look" || c.op == "overwrite" {
			n := inFlight.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
		}
		return nil
	})
	leave := onOp("", func(_ context.Context, c call) error {
		if c.op == "mark" || c.op == "claim" || c.op == "extend" || c.op == "look" || c.op == "overwrite" {
			inFlight.Add(-1)
		}
		return nil
	})
	r.calls.on(enter, leave)
	var inside atomic.Int32
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			lease, err := r.Acquire(t.Context(), "k")
			if err != nil {
				t.Errorf("acquire: %v", err)
				return
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d holders at once", n)
			}
			inside.Add(-1)
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d requests of one process for one key at once, want 1", most.Load())
	}
	// Each goes to the servers once: nobody is refused in its own process.
	if n := r.calls.count("claim"); n != 1000 {
		t.Errorf("%d claims for 1000 leases", n)
	}
	if n := r.calls.count("mark"); n > 1100 {
		t.Errorf("%d marks for 1000 leases", n)
	}
}

// TestWait_order is first come, first served within a process.
func TestWait_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		first := r.must(t, "k")
		var mu sync.Mutex
		var got []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				lease, err := r.Acquire(t.Context(), "k")
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if err := first.Release(t.Context()); err != nil {
			t.Error(err)
		}
		all.Wait()
		if !slices.IsSorted(got) || len(got) != 20 {
			t.Errorf("served in the order %v", got)
		}
	})
}

// TestWait_deadHead_G2 ends the wait of the first in line: those behind it are
// not stuck.
func TestWait_deadHead_G2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		held := r.peer(t, tier.WithTTL(time.Minute)).must(t, "k")
		head, kill := context.WithCancel(t.Context())
		headErr := make(chan error, 1)
		go func() {
			_, err := r.Acquire(head, "k")
			headErr <- err
		}()
		synctest.Wait()
		got := make(chan error, 500)
		for range 500 {
			go func() {
				lease, err := r.Acquire(t.Context(), "k")
				if err == nil {
					err = lease.Release(t.Context())
				}
				got <- err
			}()
		}
		time.Sleep(500 * time.Millisecond)
		kill()
		if err := <-headErr; !errors.Is(err, context.Canceled) || !errors.Is(err, tier.ErrHeld) {
			t.Errorf("the head: %v, want the context's error joined with ErrHeld", err)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 500 {
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the line behind a dead head took %v", took)
		}
		time.Sleep(time.Second)
		r.clean(t)
	})
}

// TestWait_herd_H1_H2 lets fifty processes wait for one key: the authority
// hears little of it, and they do not ask in step.
func TestWait_herd_H1_H2(t *testing.T) {
	for _, filterDown := range []bool{false, true} {
		t.Run(fmt.Sprintf("filterDown=%v", filterDown), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const processes = 50
				first := newRig(t, tier.WithTTL(time.Hour))
				held := first.must(t, "k")
				ctx, stop := context.WithCancel(t.Context())
				var mu sync.Mutex
				var asked []time.Duration
				start := time.Now()
				var waiting sync.WaitGroup
				rigs := make([]*rig, processes)
				for i := range rigs {
					r := first.peer(t, tier.WithTTL(time.Hour), tier.WithWait(time.Hour))
					rigs[i] = r
					if filterDown {
						r.filter.Down()
					}
					note := onOp("", func(_ context.Context, c call) error {
						if c.op == "claim" || c.op == "look" {
							mu.Lock()
							asked = append(asked, time.Since(start))
							mu.Unlock()
						}
						return nil
					})
					r.calls.on(note, nil)
					for range 20 {
						waiting.Go(func() {
							if lease, err := r.Acquire(ctx, "k"); err == nil {
								t.Error("granted while held")
								_ = lease.Release(context.Background())
							}
						})
					}
				}
				time.Sleep(time.Minute)
				stop()
				waiting.Wait()
				if err := held.Release(t.Context()); err != nil {
					t.Error(err)
				}
				perSecond := float64(len(asked)) / 60 / processes
				t.Logf("%.2f questions to the authority a second and process", perSecond)
				if perSecond > 1.5 {
					t.Errorf("%.2f questions a second and process, at most 1.5", perSecond)
				}
				// In the steady state the questions are spread over the second:
				// Kolmogorov-Smirnov against the uniform distribution.
				var phases []float64
				for _, at := range asked {
					if at > 10*time.Second {
						phases = append(phases, float64(at%time.Second)/float64(time.Second))
					}
				}
				if d := distanceFromUniform(phases); d > 0.1 {
					t.Errorf("the questions come in step: distance %.3f from uniform over %d", d, len(phases))
				}
			})
		})
	}
}

// distanceFromUniform is the Kolmogorov-Smirnov statistic of values in [0, 1).
func distanceFromUniform(values []float64) float64 {
	slices.Sort(values)
	d := 0.0
	for i, v := range values {
		d = max(d, math.Abs(v-float64(i)/float64(len(values))), math.Abs(v-float64(i+1)/float64(len(values))))
	}
	return d
}

// TestWait_filterErrors_G5 bounds what a waiter does while the filter answers
// with errors.
func TestWait_filterErrors_G5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(time.Minute))
		held := r.peer(t, tier.WithTTL(time.Minute)).must(t, "k")
		r.filter.Down()
		if _, err := r.Acquire(t.Context(), "k", tier.WithWait(20*time.Second)); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("acquire: %v, want ErrHeld", err)
		}
		if n := r.calls.total(); n > 20*5 {
			t.Errorf("%d calls in 20 seconds of waiting", n)
		}
		if n := r.log.FilterMessageSnippet("redis is out").Len(); n != 1 {
			t.Errorf("the outage was logged %d times, want once", n)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestWait_sharedOption_H3 uses one option value from many goroutines.
func TestWait_sharedOption_H3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(time.Minute))
		option := tier.WithWait(0)
		held := r.peer(t, tier.WithTTL(time.Minute)).must(t, "k")
		r.filter.Flush()
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				// Each a key of its own but one, which is held elsewhere.
				key := fmt.Sprintf("k%d", i)
				if i == 0 {
					key = "k"
				}
				lease, err := r.Acquire(t.Context(), key, option, tier.WithTTL(ttl))
				if i == 0 {
					if !errors.Is(err, tier.ErrHeld) {
						t.Errorf("held key: %v, want ErrHeld", err)
					}
					return
				}
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
		if n := r.calls.count("claim"); n != 200 {
			t.Errorf("%d claims for 200 single looks", n)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
