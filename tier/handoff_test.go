// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// queue has a caller wait in line for a key, and returns where its answer comes.
func (r *rig) queue(ctx context.Context, key string, options ...tier.AcquireOption) <-chan handed {
	c := make(chan handed, 1)
	go func() {
		lease, err := r.Acquire(ctx, key, options...)
		c <- handed{lease, err}
	}()
	synctest.Wait()
	return c
}

type handed struct {
	lease *tier.Lease
	err   error
}

// now is the answer that has come already.
func now(t *testing.T, c <-chan handed) *tier.Lease {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-c:
		if got.err != nil {
			t.Fatalf("acquire: %v", got.err)
		}
		return got.lease
	default:
		t.Fatal("still waiting")
		return nil
	}
}

// TestHandOff_inside_P2 passes a lease through callers of one process.
func TestHandOff_inside_P2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		lease := r.must(t, "k")
		token := lease.Tenure().Token
		var line []<-chan handed
		for range 10 {
			line = append(line, r.queue(t.Context(), "k"))
		}
		before := r.calls.total()
		for i, next := range line {
			last := lease
			if err := last.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			lease = now(t, next)
			switch {
			case lease.Tenure().Token != token:
				t.Errorf("hand-off %d: another lease", i)
			case lease.Fence() != last.Fence()+1:
				t.Errorf("hand-off %d: fence %d after %d", i, lease.Fence(), last.Fence())
			case !errors.Is(last.Err(), context.Canceled) || !errors.Is(context.Cause(last.Context()), context.Canceled):
				t.Errorf("hand-off %d: the tenure before: %v", i, last.Err())
			case lease.Err() != nil || lease.Level() != tier.LevelFull:
				t.Errorf("hand-off %d: %v, level %v", i, lease.Err(), lease.Level())
			}
			if _, err := last.Prove(); !errors.Is(err, tier.ErrLost) {
				t.Errorf("hand-off %d: a tenure that is over is proved: %v", i, err)
			}
			if err := last.Release(t.Context()); err != nil { // once more
				t.Errorf("hand-off %d: %v", i, err)
			}
			if err := last.Verify(t.Context()); !errors.Is(err, context.Canceled) {
				t.Errorf("hand-off %d: verify: %v", i, err)
			}
		}
		if n := r.calls.total() - before; n != 0 {
			t.Errorf("%d calls for 10 hand-offs", n)
		}
		if row := r.row(t, "k"); row.Fence < lease.Fence() {
			t.Errorf("fence %d, the row has %d", lease.Fence(), row.Fence)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.clean(t)
		next := r.must(t, "k")
		if next.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
		}
		if err := next.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestHandOff_refused ends the lease through the server, so that its token dies
// with it, wherever the next tenure could be mistaken for this one or has asked for
// something else.
func TestHandOff_refused(t *testing.T) {
	const handFor = 50 * time.Millisecond
	for name, c := range map[string]struct {
		options []tier.AcquireOption // of the holder
		waiter  []tier.AcquireOption
		before  func(t *testing.T, r *rig, lease *tier.Lease)
		lost    bool
	}{
		"nothing in the way": {},
		"confirmed in a transaction of the caller's": {before: func(t *testing.T, _ *rig, lease *tier.Lease) {
			if _, err := lease.Prove(); err != nil {
				t.Error(err)
			}
		}},
		"a COMMIT that is not known": {before: func(t *testing.T, _ *rig, lease *tier.Lease) {
			_, unpin, err := lease.Pin()
			if err != nil {
				t.Error(err)
			}
			unpin(false)
		}},
		"freed in a transaction": {before: func(t *testing.T, _ *rig, lease *tier.Lease) {
			if _, err := lease.ProveFreeing(); err != nil {
				t.Error(err)
			}
		}},
		"a guarded write under way": {before: func(t *testing.T, _ *rig, lease *tier.Lease) {
			_, unpin, err := lease.Pin()
			if err != nil {
				t.Error(err)
			}
			time.AfterFunc(time.Millisecond, func() { unpin(true) })
		}},
		"held with a min hold":       {options: []tier.AcquireOption{tier.WithMinHold(time.Millisecond)}},
		"a min hold is wanted":       {waiter: []tier.AcquireOption{tier.WithMinHold(time.Millisecond)}},
		"another TTL is wanted":      {waiter: []tier.AcquireOption{tier.WithTTL(2 * ttl)}},
		"another holder is named":    {waiter: []tier.AcquireOption{tier.WithHolder("another")}},
		"held longer than allowed":   {options: []tier.AcquireOption{tier.WithMaxHold(10 * time.Millisecond)}, before: func(*testing.T, *rig, *tier.Lease) { time.Sleep(20 * time.Millisecond) }},
		"handed on for long enough":  {before: func(*testing.T, *rig, *tier.Lease) { time.Sleep(handFor) }},
		"no hand-off allowed":        {options: []tier.AcquireOption{tier.WithHandoffs(1)}},
		"the policies were set anew": {before: func(t *testing.T, r *rig, _ *tier.Lease) { _ = r.SetPolicies() }},
		"lost, by the server's word": {lost: true, before: func(t *testing.T, r *rig, lease *tier.Lease) { r.authority.Revoke(); _ = lease.Verify(t.Context()) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute), tier.WithHandoffFor(handFor))
				lease := r.must(t, "k", c.options...)
				waiting := r.queue(t.Context(), "k", c.waiter...)
				if c.before != nil {
					c.before(t, r, lease)
				}
				if err := lease.Release(t.Context()); errors.Is(err, tier.ErrLost) != c.lost {
					t.Errorf("release: %v", err)
				}
				got := <-waiting
				if got.err != nil {
					t.Fatal(got.err)
				}
				passed := got.lease.Tenure().Token == lease.Tenure().Token
				if passed != (c.before == nil && c.options == nil && c.waiter == nil) {
					t.Errorf("handed on: %v", passed)
				}
				if got.lease.Fence() <= lease.Fence() {
					t.Errorf("fence %d after %d", got.lease.Fence(), lease.Fence())
				}
				if err := got.lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestHandOff_promoted has a row behind a local lease, which only keeps others out:
// who comes next is granted a lease of its own.
func TestHandOff_promoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, shop(), tier.WithWait(time.Minute), tier.WithHandoffFor(time.Hour))
		lease := r.promoted(t, "inventory/1")
		waiting := r.queue(t.Context(), "inventory/1")
		r.release(t, lease)
		next := now(t, waiting)
		mustLevel(t, next, tier.LevelFull)
		r.release(t, next)
		r.clean(t)
	})
}

// TestHandOff_nearExpiry hands nothing on that has less than half its TTL left.
func TestHandOff_nearExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute), tier.WithHandoffFor(time.Hour))
		r.calls.on(onOp("renew", firstN(1<<30, 0)), nil)
		lease := r.must(t, "k")
		waiting := r.queue(t.Context(), "k")
		time.Sleep(ttl/2 + time.Millisecond)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-waiting
		if got.err != nil || got.lease.Tenure().Token == lease.Tenure().Token {
			t.Errorf("handed on with less than half a TTL: %v", got.err)
		}
		r.calls.on(nil, nil)
		if err := got.lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestHandOff_leftAtThatMoment has waiters whose wait ends when they are handed the
// lease: it goes on to the next, and is free in the end.
func TestHandOff_leftAtThatMoment(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
			lease := r.must(t, "k")
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			leaving, staying := r.queue(ctx, "k"), r.queue(t.Context(), "k")
			time.Sleep(time.Millisecond)
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := <-leaving
			if got.err == nil {
				if err := got.lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(got.err, context.DeadlineExceeded) {
				t.Error(got.err)
			}
			last := now(t, staying)
			if err := last.Release(t.Context()); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			r.clean(t)
			if lines, held, due := r.Internals(); lines+held+due != 0 {
				t.Errorf("left: %d lines, %d held, %d due", lines, held, due)
			}
		})
	}
}

// TestHandOff_lossReachesTheRunningTenure loses the row behind a lease that was
// handed on: who holds it now learns it, and nobody else.
func TestHandOff_lossReachesTheRunningTenure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		first := r.must(t, "k")
		waiting := r.queue(t.Context(), "k")
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := now(t, waiting)
		r.authority.Revoke()
		time.Sleep(ttl / 2)
		if err := second.Err(); !errors.Is(err, tier.ErrLost) {
			t.Errorf("the running tenure: %v", err)
		}
		if err := first.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("the one before: %v", err)
		}
		if err := second.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
			t.Errorf("release: %v", err)
		}
	})
}

// TestHandOff_renewed renews a lease for whoever has it.
func TestHandOff_renewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Hour), tier.WithHandoffFor(time.Hour), tier.WithMaxHold(0))
		lease := r.must(t, "k")
		token := lease.Tenure().Token
		for range 30 {
			waiting := r.queue(t.Context(), "k")
			time.Sleep(ttl / 4)
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			lease = now(t, waiting)
		}
		if lease.Tenure().Token != token || lease.Err() != nil {
			t.Errorf("after 30 hand-offs over %v: %v", 30*ttl/4, lease.Err())
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestHandOff_maxHold bounds each tenure, not the lease.
func TestHandOff_maxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(time.Minute), tier.WithWait(time.Hour), tier.WithHandoffFor(time.Hour), tier.WithMaxHold(time.Second))
		lease := r.must(t, "k", tier.WithMaxHold(time.Hour))
		waiting := r.queue(t.Context(), "k")
		time.Sleep(10 * time.Second)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := now(t, waiting)
		time.Sleep(900 * time.Millisecond)
		if err := next.Err(); err != nil {
			t.Errorf("before its bound: %v", err)
		}
		ended := next.Context()
		time.Sleep(200 * time.Millisecond)
		if !errors.Is(context.Cause(ended), tier.ErrMaxHold) {
			t.Errorf("after its bound: %v", context.Cause(ended))
		}
		if err := next.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestHandOff_givesWay leaves the key to another process for a moment.
func TestHandOff_givesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute), tier.WithHandoffs(2), tier.WithGiveWay(20*time.Millisecond))
		peer := r.peer(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		first := r.must(t, "k")
		second, third := r.queue(t.Context(), "k"), r.queue(t.Context(), "k")
		other := peer.queue(t.Context(), "k")
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := now(t, second).Release(t.Context()); err != nil { // the block is used up
			t.Fatal(err)
		}
		theirs := now(t, other)
		time.Sleep(30 * time.Millisecond)
		if err := theirs.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-third
		if got.err != nil || got.lease.Fence() <= theirs.Fence() {
			t.Fatalf("the process that gave way: %v", got.err)
		}
		if err := got.lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestHandOff_none asks the servers again at once: who hands nothing on has nothing
// to make up for.
func TestHandOff_none(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute), tier.WithHandoffs(1), tier.WithGiveWay(20*time.Millisecond))
		first := r.must(t, "k")
		second := r.queue(t.Context(), "k")
		began := time.Now()
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-second
		if got.err != nil {
			t.Fatal(got.err)
		}
		if waited := time.Since(began); waited >= 20*time.Millisecond {
			t.Errorf("the next of the same process waited %v", waited)
		}
		if got.lease.Tenure().Token == first.Tenure().Token {
			t.Error("the lease was handed on")
		}
		if err := got.lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestHandOff_close neither hands on in a locker that closes, nor hangs.
func TestHandOff_close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl), tier.WithWait(time.Minute))
		lease := r.must(t, "k")
		waiting := r.queue(t.Context(), "k")
		closed := make(chan error, 1)
		go func() { closed <- r.Close(context.Background()) }()
		synctest.Wait()
		if got := <-waiting; !errors.Is(got.err, tier.ErrClosed) {
			t.Errorf("the waiter: %v", got.err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		r.clean(t)
	})
}

// TestHandOff_crowd has a process's callers hold a key one at a time, with a process
// beside it, whoever leaves early.
func TestHandOff_crowd(t *testing.T) {
	t.Parallel()
	r := newRig(t, tier.WithTTL(time.Second), tier.WithWait(time.Minute), tier.WithHandoffs(10))
	peer := r.peer(t, tier.WithTTL(time.Second), tier.WithWait(time.Minute), tier.WithHandoffFor(time.Millisecond))
	var mu sync.Mutex
	var last uint64
	holders := 0
	var all sync.WaitGroup
	for i := range 64 {
		of := []*rig{r, peer}[i%2]
		all.Go(func() {
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i)*time.Millisecond)
				lease, err := of.Acquire(ctx, "k")
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("acquire: %v", err)
					}
					continue
				}
				mu.Lock()
				holders++
				if holders != 1 || lease.Fence() <= last {
					t.Errorf("%d holders, fence %d after %d", holders, lease.Fence(), last)
				}
				last = lease.Fence()
				mu.Unlock()
				mu.Lock()
				holders--
				mu.Unlock()
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	all.Wait()
}

// TestHandOff_whoComesMeanwhile hands on to callers at the very moment at which they
// take their place in line: nobody waits for what he has been given.
func TestHandOff_whoComesMeanwhile(t *testing.T) {
	t.Parallel()
	l := tiertest.NewLocker(t, tier.WithWait(10*time.Second))
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 2000 {
				lease, err := l.Acquire(t.Context(), "k")
				if err == nil {
					err = lease.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestHandOff_allocations is two for each tenure: the call, with its turn and its
// tenure, and what it waits on.
func TestHandOff_allocations(t *testing.T) {
	l := tiertest.NewLocker(t, tier.WithWait(time.Minute), tier.WithHandoffFor(time.Hour), tier.WithHandoffs(65_536))
	ask, answers := make(chan struct{}), make(chan *tier.Lease)
	defer close(ask)
	go func() {
		for range ask {
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			answers <- lease
		}
	}()
	held, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	got := testing.AllocsPerRun(1000, func() {
		ask <- struct{}{}
		for l.Line("k") < 2 {
			runtime.Gosched()
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
		held = <-answers
	})
	if got > perTenure {
		t.Errorf("%v allocations for a tenure", got)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}
