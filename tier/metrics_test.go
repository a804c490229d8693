// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// counts is all that is not zero in a registry: counters, gauges and how often
// histograms were told, by name and labels.
type counts map[string]float64

func gather(t *testing.T, r prometheus.Gatherer) counts {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(counts)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "tierlock_")
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if v != 0 {
				found[name] = v
			}
		}
	}
	return found
}

// some is any count but none.
const some = -1

// is compares everything, series that nobody expected included.
func (c counts) is(t *testing.T, want counts) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if c[name] != want[name] && (want[name] != some || c[name] == 0) {
			t.Errorf("%s is %v, want %v", name, c[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if _, expected := want[name]; !expected {
			t.Errorf("%s is %v, want none", name, c[name])
		}
	}
}

func lint(t *testing.T, r prometheus.Gatherer) {
	t.Helper()
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// meteredRig is a rig whose metrics a test can read, and whose tests may leave
// leases behind.
type meteredRig struct {
	*rig
	metrics *prometheus.Registry
}

func newMeteredRig(t *testing.T) *meteredRig {
	t.Helper()
	r := &meteredRig{metrics: prometheus.NewPedanticRegistry()}
	r.rig = abandoned(t, newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority(), rungs(), tier.WithMetrics(r.metrics)))
	return r
}

// peer is not counted.
func (r *meteredRig) peer(t *testing.T) *rig {
	t.Helper()
	return abandoned(t, newOpenRig(t, r.filter.Join(), r.authority.Join()))
}

func abandoned(t *testing.T, r *rig) *rig {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.Close(ctx) // says what is held
	})
	return r
}

// cut takes the authority down, and asks until its breaker has noticed.
func (r *meteredRig) cut(t *testing.T) {
	t.Helper()
	r.authority.Down()
	for range 5 {
		if _, err := r.TryAcquire(t.Context(), "of no policy"); !errors.Is(err, tier.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

func rungs() tier.Option {
	return tier.WithPolicies(
		tier.Policy{Match: "stop/**"},
		tier.Policy{Match: "local/**", Degrade: fallback.Ladder{fallback.Local, fallback.FailClosed}, LocalFor: localFor},
		tier.Policy{Match: "redis/**", Tiers: tier.TiersFilter},
	)
}

// Every answer that a caller can get, and every end of a tenure, is counted once.
// Labels stand in the order of their names: level, outcome, policy.
func TestMetrics_everyOutcome(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		do   func(t *testing.T, r *meteredRig)
		want counts
	}{
		"full": {
			func(t *testing.T, r *meteredRig) { r.release(t, r.must(t, "stop/1")) },
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1,
				"hold_seconds stop/**": 1, "release_total released": 1,
			},
		},
		"held now": {
			func(t *testing.T, r *meteredRig) { r.must(t, "of no policy") },
			counts{"acquire_total full granted default": 1, "acquire_seconds default": 1, "held default": 1},
		},
		"without redis": {
			func(t *testing.T, r *meteredRig) {
				r.filter.Down()
				r.release(t, r.must(t, "stop/1"))
			},
			counts{
				"acquire_total authority granted stop/**": 1, "acquire_seconds stop/**": 1,
				"hold_seconds stop/**": 1, "release_total released": 1,
			},
		},
		"redis alone": {
			func(t *testing.T, r *meteredRig) { r.release(t, r.must(t, "redis/1")) },
			counts{
				"acquire_total filter granted redis/**": 1, "acquire_seconds redis/**": 1,
				"hold_seconds redis/**": 1, "release_total released": 1,
			},
		},
		"held": {
			func(t *testing.T, r *meteredRig) {
				r.must(t, "stop/1")
				if _, err := r.TryAcquire(t.Context(), "stop/1"); !errors.Is(err, tier.ErrHeld) {
					t.Error(err)
				}
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "held stop/**": 1,
				"acquire_total none held stop/**": 1,
			},
		},
		"waits, granted and not": {
			func(t *testing.T, r *meteredRig) {
				first := r.must(t, "stop/1")
				var line sync.WaitGroup
				line.Go(func() { _ = r.must(t, "stop/1").Release(t.Context()) })
				synctest.Wait()
				line.Go(func() {
					if _, err := r.Acquire(t.Context(), "stop/1", tier.WithWait(time.Second)); !errors.Is(err, tier.ErrHeld) {
						t.Error(err)
					}
				})
				synctest.Wait()
				gather(t, r.metrics).is(t, counts{
					"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "held stop/**": 1,
					"waiters stop/**": 2, "waits_total stop/** 13": 2,
				})
				time.Sleep(2 * time.Second)
				r.release(t, first)
				line.Wait()
			},
			counts{
				"acquire_total full granted stop/**": 2, "acquire_seconds stop/**": 2, "hold_seconds stop/**": 2, "release_total released": 2,
				"acquire_total none held stop/**": 1, "waits_total stop/** 13": 2, "wait_seconds stop/**": 2,
			},
		},
		"waits for another process": {
			func(t *testing.T, r *meteredRig) {
				r.peer(t).must(t, "stop/1")
				if _, err := r.Acquire(t.Context(), "stop/1"); !errors.Is(err, tier.ErrHeld) {
					t.Error(err)
				}
			},
			counts{"acquire_total none held stop/**": 1, "waits_total stop/** 13": 1, "wait_seconds stop/**": 1},
		},
		"cancelled": {
			func(t *testing.T, r *meteredRig) {
				r.must(t, "stop/1")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				for _, ctx := range []context.Context{ctx, cancelled} {
					if _, err := r.Acquire(ctx, "stop/1"); !errors.Is(err, ctx.Err()) {
						t.Error(err)
					}
				}
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "held stop/**": 1,
				"acquire_total none cancelled stop/**": 2, "waits_total stop/** 13": 2, "wait_seconds stop/**": 2,
			},
		},
		"errors": {
			func(t *testing.T, r *meteredRig) {
				for _, key := range []string{"", strings.Repeat("k", 256)} {
					if _, err := r.Acquire(t.Context(), key); !errors.Is(err, tier.ErrKey) {
						t.Error(err)
					}
				}
				if _, err := r.Acquire(t.Context(), "stop/1", tier.WithTTL(time.Millisecond)); !errors.Is(err, tier.ErrOption) {
					t.Error(err)
				}
				if _, err := r.AcquireAll(t.Context()); !errors.Is(err, tier.ErrOption) {
					t.Error(err)
				}
			},
			counts{"acquire_total none error default": 3, "acquire_total none error stop/**": 1},
		},
		"closed": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := r.Close(ctx); err == nil {
					t.Error("a lease was held when the locker was closed, and Close said nothing")
				}
				if _, err := r.Acquire(t.Context(), "stop/1"); !errors.Is(err, tier.ErrClosed) {
					t.Error(err)
				}
				if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrClosed) {
					t.Error(err)
				}
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"acquire_total none closed stop/**": 1, "lost_total closed": 1, "release_total closed": 1,
			},
		},
		"re-entered": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				again, err := r.Acquire(lease.Context(), "stop/1")
				if err != nil {
					t.Fatal(err)
				}
				r.release(t, again)
				r.release(t, lease)
			},
			counts{
				"acquire_total full granted stop/**": 2, "acquire_seconds stop/**": 1,
				"hold_seconds stop/**": 1, "release_total released": 1,
			},
		},
		"all": {
			func(t *testing.T, r *meteredRig) {
				blocker := r.peer(t).must(t, "stop/1")
				time.AfterFunc(time.Second, func() { _ = blocker.Release(t.Context()) })
				leases, err := r.AcquireAll(t.Context(), "stop/1", "redis/1")
				if err != nil {
					t.Fatal(err)
				}
				if err := leases.Release(t.Context()); err != nil {
					t.Error(err)
				}
			},
			counts{ // one wait, and nothing of the tries that were given back
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"acquire_total filter granted redis/**": 1, "acquire_seconds redis/**": 1, "hold_seconds redis/**": 1,
				"waits_total stop/** 13": 1, "wait_seconds stop/**": 1, "release_total released": 2,
			},
		},
		"not all": {
			func(t *testing.T, r *meteredRig) {
				r.peer(t).must(t, "stop/1")
				if _, err := r.AcquireAll(t.Context(), "a", "stop/1"); !errors.Is(err, tier.ErrHeld) {
					t.Error(err)
				}
				synctest.Wait()
			},
			counts{ // a was held until stop/1 was given up
				"acquire_total none held stop/**": 1, "waits_total stop/** 13": 1, "wait_seconds stop/**": 1,
				"hold_seconds default": 1, "release_total released": 1,
			},
		},
		"any": {
			func(t *testing.T, r *meteredRig) {
				first := r.must(t, "stop/1")
				lease, err := r.AcquireAny(t.Context(), "stop/1", "redis/1")
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Second, func() { _ = first.Release(t.Context()) })
				second, err := r.AcquireAny(t.Context(), "stop/1", "redis/1")
				if err != nil {
					t.Fatal(err)
				}
				r.release(t, lease)
				r.release(t, second)
			},
			counts{
				"acquire_total full granted stop/**": 2, "acquire_seconds stop/**": 2, "hold_seconds stop/**": 2,
				"acquire_total filter granted redis/**": 1, "acquire_seconds redis/**": 1, "hold_seconds redis/**": 1,
				"waits_total stop/** 13": 1, "wait_seconds stop/**": 1,
				"waits_total redis/** 00": 1, "wait_seconds redis/**": 1, "release_total released": 3,
			},
		},
		"renewed, by itself and on demand": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				time.Sleep(5 * time.Second)
				if err := lease.Renew(t.Context()); err != nil {
					t.Error(err)
				}
				r.release(t, lease)
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"release_total released": 1, "renew_total renewed": 2,
			},
		},
		"renewals without an answer, busy and late": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				r.calls.on(onOp("renew", func(_ context.Context, c call) error {
					switch c.n {
					case 1:
						return &driver.Refusal{Busy: true}
					case 2:
						return fault("renew", driver.ClassTransient)
					}
					time.Sleep(time.Second)
					return nil
				}), nil)
				time.Sleep(time.Millisecond)
				if err := lease.Renew(t.Context()); !errors.Is(err, tier.ErrUnavailable) {
					t.Error(err)
				}
				for r.calls.count("renew") < 3 {
					time.Sleep(time.Second / 4)
				}
				r.release(t, lease)
				time.Sleep(time.Second)
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"release_total released": 1, "renew_total busy": 1, "renew_total error": 1, "renew_total late": 1,
			},
		},
		"lost by a revocation": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				r.authority.Revoke()
				<-lease.Done()
				if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
					t.Error(err)
				}
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"lost_total taken": 1, "renew_total lost": 1, "release_total lost": 1,
			},
		},
		"found lost by its release": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				r.authority.Revoke()
				if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
					t.Error(err)
				}
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"lost_total taken": 1, "release_total lost": 1,
			},
		},
		"found lost by a look at it": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1")
				// An operator frees the row.
				if err := r.authority.Join().Release(t.Context(), driver.Release{Key: namespace + "/stop/1", Token: lease.Tenure().Token}); err != nil {
					t.Error(err)
				}
				if err := lease.Verify(t.Context()); !errors.Is(err, tier.ErrLost) {
					t.Error(err)
				}
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"lost_total freed": 1,
			},
		},
		"lost in silence": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1", tier.WithTTL(time.Second))
				r.authority.Silence()
				time.Sleep(2 * time.Second)
				if err := lease.Release(t.Context()); err == nil {
					t.Error("nobody answered the release")
				}
				r.authority.Up()
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"lost_total deadline": 1, "release_total unknown": 1,
				"renew_total error": some, "renew_total late": some,
			},
		},
		"held too long": {
			func(t *testing.T, r *meteredRig) {
				lease := r.must(t, "stop/1", tier.WithMaxHold(time.Second))
				<-lease.Done()
				gather(t, r.metrics).is(t, counts{
					"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "held stop/**": 1,
					"lost_total max_hold": 1,
				})
				time.Sleep(20 * time.Second) // past its deadline: the first cause stands
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"lost_total max_hold": 1,
			},
		},
		"retried": {
			func(t *testing.T, r *meteredRig) {
				r.calls.on(onOp("claim", firstN(1, driver.ClassTransient)), nil)
				r.release(t, r.must(t, "stop/1"))
			},
			counts{
				"acquire_total full granted stop/**": 1, "acquire_seconds stop/**": 1, "hold_seconds stop/**": 1,
				"waits_total stop/** 13": 1, "wait_seconds stop/**": 1,
				"degraded_total retry": 1, "release_total released": 1,
			},
		},
		"no authority: refused": {
			func(t *testing.T, r *meteredRig) {
				r.cut(t)
				for range 10 {
					if _, err := r.Acquire(t.Context(), "stop/1"); !errors.Is(err, tier.ErrUnavailable) {
						t.Error(err)
					}
				}
			},
			counts{
				"acquire_total none unavailable default": 5, "acquire_total none unavailable stop/**": 10,
				"degraded_total fail_closed": 15, "breaker_state mysql partial": 1,
			},
		},
		"no authority: local, and as it was again": {
			func(t *testing.T, r *meteredRig) {
				r.cut(t)
				lease := r.must(t, "local/1")
				r.authority.Up()
				time.Sleep(time.Second)
				r.release(t, lease)
				r.release(t, r.must(t, "local/1"))
			},
			counts{
				"acquire_total none unavailable default": 5,
				"acquire_total local granted local/**":   1, "acquire_total full granted local/**": 1,
				"acquire_seconds local/**": 2, "hold_seconds local/**": 2,
				"degraded_total fail_closed": 5, "degraded_total local": 1, "release_total released": 2,
			},
		},
		"no authority for longer than local_for": {
			func(t *testing.T, r *meteredRig) {
				r.cut(t)
				lease := r.must(t, "local/1", tier.WithTTL(localFor))
				<-lease.Done()
				time.Sleep(10 * time.Second)
				if _, err := r.Acquire(t.Context(), "local/2"); !errors.Is(err, tier.ErrUnavailable) {
					t.Error(err)
				}
				time.Sleep(localFor)
			},
			counts{
				"acquire_total none unavailable default": 5, "acquire_total none unavailable local/**": 1,
				"acquire_total local granted local/**": 1, "acquire_seconds local/**": 1, "hold_seconds local/**": 1,
				"degraded_total fail_closed": 6, "degraded_total local": 1, "lost_total local_for": 1,
				"renew_total renewed":         some,
				"breaker_state mysql partial": 1, "breaker_state mysql global": 1,
			},
		},
		"promotion comes too late": {
			func(t *testing.T, r *meteredRig) {
				peer := r.peer(t)
				r.cut(t)
				lease := r.must(t, "local/1")
				// Another process, which sees no mark and an authority that is well.
				r.filter.Flush()
				peer.must(t, "local/1")
				r.authority.Up()
				<-lease.Done()
			},
			counts{
				"acquire_total none unavailable default": 5,
				"acquire_total local granted local/**":   1, "acquire_seconds local/**": 1, "hold_seconds local/**": 1,
				"degraded_total fail_closed": 5, "degraded_total local": 1, "lost_total taken": 1,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newMeteredRig(t)
				c.do(t, r)
				synctest.Wait()
				gather(t, r.metrics).is(t, c.want)
				lint(t, r.metrics)
			})
		})
	}
}

// A policy that a reload adds is counted from then on; the series of one that it
// drops stay, and so do those whose names are no text.
func TestMetrics_reload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMeteredRig(t)
		held := r.must(t, "stop/1")
		if err := r.SetPolicies(tier.Policy{Match: "new/**"}, tier.Policy{Match: "\xff/**"}); err != nil {
			t.Fatal(err)
		}
		r.release(t, r.must(t, "new/1"))
		r.release(t, r.must(t, "\xff/1"))
		r.release(t, r.must(t, "stop/2"))
		r.release(t, held)
		want := counts{"release_total released": 4}
		for _, policy := range []string{"stop/**", "new/**", "\uFFFD/**", "default"} {
			want["acquire_total full granted "+policy] = 1
			want["acquire_seconds "+policy], want["hold_seconds "+policy] = 1, 1
		}
		gather(t, r.metrics).is(t, want)
		lint(t, r.metrics)
	})
}

// What is counted is there from the start, so that a rate has a beginning.
func TestMetrics_beginAtZero(t *testing.T) {
	metrics := prometheus.NewPedanticRegistry()
	tiertest.NewLocker(t, tier.WithMetrics(metrics))
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, family := range families {
		found = append(found, fmt.Sprintf("%s %d", family.GetName(), len(family.GetMetric())))
	}
	want := []string{
		"tierlock_acquire_seconds 1", "tierlock_acquire_total 9", "tierlock_breaker_state 4", "tierlock_degraded_total 3", "tierlock_handoff_total 1",
		"tierlock_held 1", "tierlock_hold_seconds 1", "tierlock_lost_total 7", "tierlock_release_total 4", "tierlock_renew_total 5",
		"tierlock_wait_seconds 1", "tierlock_waiters 1", "tierlock_waits_total 16",
	}
	if !slices.Equal(found, want) {
		t.Errorf("families and their series: %q, want %q", found, want)
	}
}

// Lockers of one registerer count together; with registerers of their own, each
// for itself.
func TestMetrics_twoLockers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.NewPedanticRegistry()
		a := tiertest.NewLocker(t, tier.WithMetrics(metrics))
		b := tiertest.NewLocker(t, tier.WithMetrics(metrics))
		named := tiertest.NewLocker(t, tier.WithMetrics(prometheus.WrapRegistererWith(prometheus.Labels{"locker": "c"}, prometheus.NewPedanticRegistry())))
		var leases tier.Leases
		for _, l := range []*tier.Locker{a, b, named} {
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
		gather(t, metrics).is(t, counts{"acquire_total full granted default": 2, "acquire_seconds default": 2, "held default": 2})
		if err := leases.Release(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func TestMetrics_ofALabel(t *testing.T) {
	metrics := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b", "b"} {
		l := tiertest.NewLocker(t, tier.WithMetrics(prometheus.WrapRegistererWith(prometheus.Labels{"locker": name}, metrics)))
		if _, err := l.Acquire(t.Context(), ""); !errors.Is(err, tier.ErrKey) {
			t.Fatal(err)
		}
	}
	gather(t, metrics).is(t, counts{"acquire_total none a error default": 1, "acquire_total none b error default": 2})
	lint(t, metrics)
}

func TestMetrics_nameOfAnother(t *testing.T) {
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "tierlock_held", Help: "Somebody else's."}))
	l, err := tier.New(nil, tiertest.NewAuthority(), tier.WithMetrics(metrics))
	if !errors.Is(err, tier.ErrOption) || l != nil {
		t.Fatalf("New: %v, %v; want nil, ErrOption", l, err)
	}
	if !strings.Contains(err.Error(), "tierlock_held") {
		t.Errorf("%q does not name the metric", err)
	}
}

func TestMetrics_nil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rungs(), tier.WithMetrics(nil))
		lease := r.must(t, "stop/1")
		if _, err := r.Acquire(t.Context(), "stop/1"); !errors.Is(err, tier.ErrHeld) {
			t.Error(err)
		}
		if _, err := r.Acquire(t.Context(), ""); !errors.Is(err, tier.ErrKey) {
			t.Error(err)
		}
		if err := lease.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		r.release(t, lease)
		lost := r.must(t, "stop/1", tier.WithMaxHold(time.Second))
		<-lost.Done()
		r.release(t, lost)
	})
}

// The state of the breakers is that of the moment, added over the lockers that
// are not closed.
func TestMetrics_breakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.NewPedanticRegistry()
		settings := tier.WithBreaker(breaker.Settings{Consecutive: 1, GlobalAfter: 10 * time.Second})
		var rigs []*rig
		for range 2 {
			rigs = append(rigs, newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority(), tier.WithMetrics(metrics), settings))
		}
		is := func(partial, global float64) {
			t.Helper()
			found := gather(t, metrics)
			maps.DeleteFunc(found, func(name string, _ float64) bool { return !strings.HasPrefix(name, "breaker_state") })
			want := counts{"breaker_state mysql partial": partial, "breaker_state mysql global": global}
			maps.DeleteFunc(want, func(_ string, v float64) bool { return v == 0 })
			found.is(t, want)
		}
		is(0, 0)
		for i, r := range rigs {
			r.authority.Down()
			_, _ = r.TryAcquire(t.Context(), "k")
			is(float64(i+1), 0)
		}
		time.Sleep(15 * time.Second)
		is(2, 2)
		rigs[0].authority.Up()
		time.Sleep(time.Second)
		is(1, 1)
		for _, r := range rigs {
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if r == rigs[1] {
				is(0, 0)
			}
		}
	})
}
