// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

const localFor = 30 * time.Second

// shop has a policy that stops, one that goes on locally, and the rest.
func shop() tier.Option {
	return tier.WithPolicies(
		tier.Policy{Match: "payment/**", Degrade: fallback.Ladder{fallback.Retry, fallback.FailClosed}},
		tier.Policy{Match: "inventory/**", Degrade: fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed}, LocalFor: localFor},
	)
}

// open takes the authority down, and asks until its breaker has noticed.
func (r *rig) open(t *testing.T) {
	t.Helper()
	r.authority.Down()
	for range 2 { // three calls each, with the retries
		if _, err := r.Acquire(t.Context(), "payment/opening"); !errors.Is(err, tier.ErrUnavailable) {
			t.Fatalf("acquire on an authority that is down: %v, want ErrUnavailable", err)
		}
	}
	synctest.Wait()
}

func (r *rig) release(t *testing.T, lease *tier.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("release %q: %v", lease.Key(), err)
	}
	synctest.Wait()
}

func mustLevel(t *testing.T, lease *tier.Lease, want tier.Level) {
	t.Helper()
	if lease.Level() != want {
		t.Fatalf("%q was granted at level %s, want %s", lease.Key(), lease.Level(), want)
	}
	if fenced := want == tier.LevelFull || want == tier.LevelAuthority; fenced != (lease.Fence() > 0) {
		t.Errorf("level %s with fence %d", want, lease.Fence())
	}
}

// On the rung fail_closed nothing is asked, and the answer says for how long.
func TestFailClosed_sendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		r.open(t)
		before := r.calls.total()
		for _, key := range []string{"payment/1", "of no policy"} {
			for name, acquire := range map[string]func() error{
				"Acquire":    func() error { _, err := r.Acquire(t.Context(), key); return err },
				"TryAcquire": func() error { _, err := r.TryAcquire(t.Context(), key); return err },
				"AcquireAll": func() error { _, err := r.AcquireAll(t.Context(), key, "payment/2"); return err },
				"AcquireAny": func() error { _, err := r.AcquireAny(t.Context(), tier.Segments(key, 4)...); return err },
			} {
				start := time.Now()
				err := acquire()
				said, _ := errors.AsType[*tier.Error](err)
				if !errors.Is(err, tier.ErrUnavailable) || said.RetryAfter <= 0 || said.RetryAfter > time.Second {
					t.Errorf("%s %q: %v, want ErrUnavailable that says when to try again", name, key, err)
				}
				if time.Since(start) != 0 {
					t.Errorf("%s %q: refused after %v, want at once", name, key, time.Since(start))
				}
			}
		}
		if n := r.calls.total() - before; n != 0 {
			t.Errorf("%d calls of the drivers, want none", n)
		}
		other, err := r.AcquireAny(t.Context(), "payment/1", "inventory/1", "payment/2")
		if err != nil || other.Key() != "inventory/1" {
			t.Errorf("of keys of which one may go on locally: %v, %v", other, err)
		} else {
			r.release(t, other)
		}
		r.authority.Up()
		time.Sleep(time.Second)
		lease := r.must(t, "payment/1")
		mustLevel(t, lease, tier.LevelFull)
		r.release(t, lease)
		if r.log.FilterMessageSnippet("mysql is out").Len() != 1 || r.log.FilterMessageSnippet("is back").Len() != 1 {
			t.Errorf("want one line for each change: %v", r.log.All())
		}
	})
}

func TestFailClosed_allocations(t *testing.T) {
	r := newRig(t, shop())
	for range 5 {
		r.authority.Down()
		_, _ = r.TryAcquire(t.Context(), "payment/opening")
	}
	allocations := testing.AllocsPerRun(1000, func() {
		if _, err := r.Acquire(t.Context(), "payment/1"); !errors.Is(err, tier.ErrUnavailable) {
			t.Fatal(err)
		}
	})
	if allocations > 2 {
		t.Errorf("%v allocations to fail closed, want at most 2", allocations)
	}
}

func BenchmarkFailClosed(b *testing.B) {
	a := tiertest.NewAuthority()
	l, err := tier.New(nil, a, shop())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close(b.Context()) }()
	a.Down()
	for range 5 {
		_, _ = l.TryAcquire(b.Context(), "payment/opening")
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Acquire(b.Context(), "payment/1"); !errors.Is(err, tier.ErrUnavailable) {
			b.Fatal(err)
		}
	}
}

func TestRetry_countsAndClasses(t *testing.T) {
	for _, c := range []struct {
		name  string
		class driver.Class
		p     tier.Policy
		calls int
	}{
		{"default", driver.ClassDown, tier.Policy{}, 3},
		{"unknown outcome", driver.ClassUnknown, tier.Policy{}, 3},
		{"needs a person", driver.ClassConfig, tier.Policy{}, 1},
		{"three attempts", driver.ClassTransient, tier.Policy{Attempts: 3}, 4},
		{"no retry", driver.ClassDown, tier.Policy{Degrade: fallback.Ladder{fallback.FailClosed}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.p.Match, c.p.Backoff = "k", 40*time.Millisecond
				r := newRig(t, tier.WithPolicies(c.p))
				r.calls.on(onOp("claim", func(context.Context, call) error { return fault("claim", c.class) }), nil)
				start := time.Now()
				if _, err := r.Acquire(t.Context(), "k"); !errors.Is(err, tier.ErrUnavailable) {
					t.Errorf("%v, want ErrUnavailable", err)
				}
				if n := r.calls.count("claim"); n != c.calls {
					t.Errorf("%d claims, want %d", n, c.calls)
				}
				if d, most := time.Since(start), time.Duration(c.calls-1)*50*time.Millisecond; d > most {
					t.Errorf("it took %v, want at most %v", d, most)
				}
			})
		})
	}
}

// A local lease has no fence, excludes within the process, and is waited for in
// the key's one line.
func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		r.open(t)
		lease := r.must(t, "inventory/1")
		mustLevel(t, lease, tier.LevelLocal)
		if proof, err := lease.Prove(); err != nil || proof.Fence != 0 {
			t.Errorf("prove: fence %d, %v; want fence 0", proof.Fence, err)
		}
		if err := lease.Verify(t.Context()); err != nil {
			t.Errorf("verify: %v", err)
		}
		if _, err := r.TryAcquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("a second one: %v, want ErrHeld", err)
		}
		again, err := r.Acquire(lease.Context(), "inventory/1")
		if err != nil {
			t.Fatal(err)
		}
		r.release(t, again)
		other := r.must(t, "inventory/2")
		time.Sleep(15 * time.Second) // more than a TTL: it is renewed
		if err := lease.Err(); err != nil {
			t.Errorf("after 15 s: %v", err)
		}
		got := make(chan *tier.Lease)
		go func() { got <- r.must(t, "inventory/1") }()
		synctest.Wait()
		r.release(t, lease)
		next := <-got
		mustLevel(t, next, tier.LevelLocal)
		r.release(t, next)
		r.release(t, other)
		if _, err := r.TryAcquire(t.Context(), "payment/1"); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("payment: %v, want ErrUnavailable", err)
		}
		if n := r.log.FilterMessageSnippet("within this process alone").Len(); n != 1 {
			t.Errorf("%d warnings of the outage, want 1", n)
		}
		r.clean(t)
	})
}

// local_for counts from the first local lease of the outage, ends what runs, and
// begins anew with the next outage.
func TestLocal_for(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop(), tier.WithBreaker(breaker.Settings{GlobalAfter: time.Hour, MinSpan: time.Hour}))
		for range 2 {
			r.open(t)
			time.Sleep(10 * time.Second)
			first := time.Now()
			lease := r.must(t, "inventory/1")
			time.Sleep(20 * time.Second)
			late := r.must(t, "inventory/2")
			<-late.Done()
			if lasted := time.Since(first); lasted > localFor || lasted < localFor-2*time.Second {
				t.Errorf("local for %v, want %v less a margin", lasted, localFor)
			}
			for _, l := range []*tier.Lease{lease, late} {
				if err := l.Err(); !errors.Is(err, tier.ErrLost) {
					t.Errorf("%q: %v, want ErrLost", l.Key(), err)
				}
			}
			time.Sleep(2 * time.Second)
			if _, err := r.Acquire(t.Context(), "inventory/3"); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("after local_for: %v, want ErrUnavailable", err)
			}
			for _, l := range []*tier.Lease{lease, late} {
				if err := l.Release(t.Context()); err != nil && !errors.Is(err, tier.ErrLost) {
					t.Errorf("release: %v", err)
				}
			}
			r.authority.Up()
			time.Sleep(time.Second)
			full := r.must(t, "inventory/1")
			mustLevel(t, full, tier.LevelFull)
			r.release(t, full)
		}
		r.clean(t)
	})
}

// Once global is open nobody goes on locally.
func TestLocal_endsWithGlobal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop(), tier.WithBreaker(breaker.Settings{GlobalAfter: 5 * time.Second}))
		r.open(t)
		lease := r.must(t, "inventory/1")
		time.Sleep(6 * time.Second)
		if _, err := r.Acquire(t.Context(), "inventory/2"); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("global is open: %v, want ErrUnavailable", err)
		}
		r.release(t, lease)
	})
}

// The mark of a local lease is flagged: nobody looks past it, and who has a mark
// is not passed either.
func TestLocal_marks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		healthy := r.peer(t, shop())
		theirs := healthy.must(t, "inventory/theirs")
		r.open(t)
		if _, err := r.Acquire(t.Context(), "inventory/theirs"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("another process has a mark: %v, want ErrHeld", err)
		}
		r.release(t, theirs)

		ours := r.must(t, "inventory/ours")
		mustLevel(t, ours, tier.LevelLocal)
		before := healthy.calls.count("claim") + healthy.calls.count("look")
		if _, err := healthy.Acquire(t.Context(), "inventory/ours"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("a flagged mark stands: %v, want ErrHeld", err)
		}
		if n := healthy.calls.count("claim") + healthy.calls.count("look") - before; n != 0 {
			t.Errorf("a flagged mark was looked past %d times", n)
		}
		r.release(t, ours)
		next := healthy.must(t, "inventory/ours")
		mustLevel(t, next, tier.LevelFull)
		r.release(t, next)
		r.clean(t)
	})
}

// Who waited on the rung local and is granted by the authority has an ordinary
// mark.
func TestLocal_marks_afterTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		theirs := r.peer(t).must(t, "inventory/1")
		r.open(t)
		got := make(chan *tier.Lease)
		go func() { got <- r.must(t, "inventory/1") }()
		synctest.Wait()
		r.authority.Up()
		time.Sleep(time.Second)
		r.release(t, theirs)
		lease := <-got
		mustLevel(t, lease, tier.LevelFull)
		state, err := r.filter.Join().Mark(t.Context(), namespace+"/inventory/1", driver.Mark{Token: driver.NewToken(), TTL: time.Second})
		if err != nil || state.Ours || state.Flagged {
			t.Errorf("the mark of a full lease: %+v, %v; want a foreign one, not flagged", state, err)
		}
		r.release(t, lease)
	})
}

// Who reads the error later, in a log, learns why it came all the same.
func TestFailClosed_saysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop())
		r.open(t)
		_, err := r.TryAcquire(t.Context(), "payment/1")
		r.authority.Up()
		time.Sleep(time.Second)
		r.release(t, r.must(t, "payment/1"))
		if err == nil || !strings.Contains(err.Error(), "taken down") {
			t.Errorf("%v: it does not say what had happened", err)
		}
	})
}

// Policies of one tier alone.
func TestTiers(t *testing.T) {
	alone := tier.WithPolicies(
		tier.Policy{Match: "redis/**", Tiers: tier.TiersFilter, Degrade: fallback.Ladder{fallback.Local, fallback.FailClosed}, LocalFor: localFor},
		tier.Policy{Match: "mysql/**", Tiers: tier.TiersAuthority},
	)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, alone)
		other := r.peer(t, alone)
		mark := r.must(t, "redis/1")
		mustLevel(t, mark, tier.LevelFilter)
		if _, err := other.Acquire(t.Context(), "redis/1"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("another process: %v, want ErrHeld", err)
		}
		time.Sleep(30 * time.Second)
		if err := mark.Verify(t.Context()); err != nil {
			t.Errorf("verify after three TTLs: %v", err)
		}
		if n := r.calls.count("claim") + r.calls.count("check") + other.calls.count("look"); n != 0 {
			t.Errorf("the authority was asked %d times", n)
		}
		r.release(t, mark)
		r.clean(t)

		lost := r.must(t, "redis/1")
		r.filter.Flush()
		if err := lost.Verify(t.Context()); !errors.Is(err, tier.ErrLost) {
			t.Errorf("verify without a mark: %v, want ErrLost", err)
		}
		if err := lost.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
			t.Errorf("release without a mark: %v, want ErrLost", err)
		}
		lost = r.must(t, "redis/1")
		r.filter.Flush()
		theirs := other.must(t, "redis/1")
		<-lost.Done()
		if err := lost.Err(); !errors.Is(err, tier.ErrLost) {
			t.Errorf("renewed over another's mark: %v, want ErrLost", err)
		}
		_ = lost.Release(t.Context())
		r.release(t, theirs)

		before := r.calls.count("mark")
		row := r.must(t, "mysql/1")
		mustLevel(t, row, tier.LevelAuthority)
		r.release(t, row)
		if n := r.calls.count("mark") - before; n != 0 {
			t.Errorf("the filter was asked %d times for tiers: mysql", n)
		}

		r.filter.Down()
		for range 5 {
			_, _ = r.TryAcquire(t.Context(), "redis/opening")
		}
		local := r.must(t, "redis/2")
		mustLevel(t, local, tier.LevelLocal)
		r.filter.Up()
		time.Sleep(time.Second)
		if _, err := other.TryAcquire(t.Context(), "redis/2"); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("promoted by its mark: %v, want ErrHeld", err)
		}
		r.release(t, local)
		r.clean(t)
	})
}

// The outage of a tier is noticed whatever came before: on a cold start, and
// after five minutes of healthy traffic.
func TestLadder_eachRungAtItsMoment(t *testing.T) {
	for _, healthy := range []time.Duration{0, 5 * time.Minute} {
		t.Run(fmt.Sprint(healthy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, shop())
				for end := time.Now().Add(healthy); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					r.release(t, r.must(t, "inventory/1"))
				}
				start := time.Now()
				r.authority.Down()
				level := func() string {
					lease, err := r.TryAcquire(t.Context(), "inventory/1")
					if err != nil {
						return "unavailable"
					}
					defer r.release(t, lease)
					return lease.Level().String()
				}
				at := make(map[string]time.Duration)
				for time.Since(start) < 65*time.Second {
					if l := level(); at[l] == 0 {
						at[l] = time.Since(start) + 1
					}
					time.Sleep(100 * time.Millisecond)
				}
				if at["local"] == 0 || at["local"] > time.Second {
					t.Errorf("local after %v, want after five failures", at["local"])
				}
				if _, err := r.TryAcquire(t.Context(), "inventory/2"); !errors.Is(err, tier.ErrUnavailable) {
					t.Errorf("after local_for and global_after: %v, want ErrUnavailable", err)
				}
				r.authority.Up()
				time.Sleep(time.Second)
				if l := level(); l != "full" {
					t.Errorf("a second after the authority is back: %s, want full", l)
				}
			})
		})
	}
}
