// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// TestAcquireAll_failureUnderAnOuterLease: the answer of the release belongs to the outer handle, not to the one that the failed call gave back.
func TestAcquireAll_failureUnderAnOuterLease(t *testing.T) {
	r := newRig(t, tier.WithWait(0))
	other := r.peer(t)
	blocker := other.must(t, "b")
	early, swallowed := 0, 0
	for i := range 200 {
		outer := r.must(t, "a")
		if _, err := r.AcquireAll(outer.Context(), "a", "b"); !errors.Is(err, tier.ErrHeld) {
			t.Fatal(err)
		}
		if i%2 == 1 {
			// taken away by an operator
			if err := r.authority.Join().Release(context.Background(), driver.Release{Key: namespace + "/a", Token: outer.Tenure().Token}); err != nil {
				t.Fatal(err)
			}
		}
		err := outer.Release(t.Context())
		if i%2 == 1 {
			if !errors.Is(err, tier.ErrLost) {
				swallowed++
			}
		} else if err != nil {
			t.Fatal(err)
		} else if r.row(t, "a").Held {
			early++
		}
		for r.row(t, "a").Held {
			runtime.Gosched()
		}
		time.Sleep(2 * time.Millisecond)
	}
	if early+swallowed > 0 {
		t.Errorf("of 100: Release answered nil with the row still held: %d; of 100: ErrLost swallowed: %d", early, swallowed)
	}
	_ = blocker.Release(t.Context())
}

// TestAcquireAll_contentionIsNoOutage: the shared wait ends while the last key is asked for.
func TestAcquireAll_contentionIsNoOutage(t *testing.T) {
	r := newRig(t, tier.WithWait(200*time.Millisecond))
	other := r.peer(t)
	ba := other.must(t, "a")
	bb := other.must(t, "b")
	_ = r.Check(t.Context())
	slow := onOp("", func(ctx context.Context, c call) error {
		if c.op != "mark" || c.keys[0] != namespace+"/b" {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	r.calls.on(slow, nil)
	time.AfterFunc(190*time.Millisecond, func() { _ = ba.Release(context.Background()) })
	_, err := r.AcquireAll(t.Context(), "a", "b")
	t.Log(err)
	if errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("contention only: %v", err)
	}
	_ = bb.Release(t.Context())
}

// TestAcquireAll_neverReturnsWhatIsLost: the first lease ends while the second key is waited for.
func TestAcquireAll_neverReturnsWhatIsLost(t *testing.T) {
	r := newRig(t, tier.WithWait(3*time.Second), tier.WithMaxHold(300*time.Millisecond))
	other := r.peer(t)
	b := other.must(t, "b")
	time.AfterFunc(600*time.Millisecond, func() { _ = b.Release(context.Background()) })
	ls, err := r.AcquireAll(t.Context(), "a", "b")
	if err != nil {
		t.Log("ok:", err)
		return
	}
	for _, l := range ls {
		if l.Err() != nil {
			t.Errorf("AcquireAll answered nil, and %q is %v", l.Key(), l.Err())
		}
	}
	_ = ls.Release(t.Context())
}

// TestClose_duringTheStartUpCheck: who waits for the start-up questions when Close begins is told ErrClosed.
func TestClose_duringTheStartUpCheck(t *testing.T) {
	bad := 0
	var last error
	for range 300 {
		r := newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority())
		in := make(chan struct{}, 1)
		r.calls.on(onOp("check", func(ctx context.Context, _ call) error {
			in <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}), nil)
		got := make(chan error, 1)
		go func() { _, err := r.TryAcquire(context.Background(), "k"); got <- err }()
		<-in
		_ = r.Close(context.Background())
		if err := <-got; !errors.Is(err, tier.ErrClosed) {
			bad++
			last = err
		}
	}
	if bad > 0 {
		t.Errorf("%d of 300 not ErrClosed, such as: %v", bad, last)
	}
}

// TestMinHold_lateRenewalKeepsIt: a renewal that was executed late is given back without giving up MinHold.
func TestMinHold_lateRenewalKeepsIt(t *testing.T) {
	r := newRig(t, tier.WithTTL(500*time.Millisecond))
	hold := make(chan struct{})
	r.calls.on(nil, onOp("renew", func(ctx context.Context, c call) error {
		<-hold
		return nil
	}))
	start := time.Now()
	lease := r.must(t, "job", tier.WithMinHold(10*time.Second))
	<-lease.Done()
	t.Log("lost after", time.Since(start), lease.Err())
	close(hold)
	time.Sleep(20 * time.Millisecond)
	held := r.row(t, "job").Held
	err := lease.Release(t.Context())
	t.Logf("after late renewal: held=%v; release: %v; held after release=%v", held, err, r.row(t, "job").Held)
	if !r.row(t, "job").Held {
		t.Errorf("%v after the grant another process may run the job, MinHold is 10s and the holder released", time.Since(start))
	}
}

// TestMinHold_lossLeavesNoMark: the row was freed by an operator: no mark stands for what is left of MinHold.
func TestMinHold_lossLeavesNoMark(t *testing.T) {
	r := newRig(t)
	lease := r.must(t, "job", tier.WithMinHold(time.Hour))
	_ = r.authority.Join().Release(context.Background(), driver.Release{Key: namespace + "/job", Token: lease.Tenure().Token})
	err := lease.Release(t.Context())
	time.Sleep(50 * time.Millisecond)
	if !r.row(t, "job").Held && r.filter.Marks() > 0 {
		t.Errorf("release: %v; the row is free and a mark of an hour stands", err)
	}
}

// TestAcquireAny_cancelledLeavesNothing_B1: grants that come after the first, or after the caller left, are given back.
func TestAcquireAny_cancelledLeavesNothing_B1(t *testing.T) {
	r := newRig(t)
	o := r.peer(t)
	segs := tier.Segments("s", 4)
	var wg sync.WaitGroup
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*250*time.Microsecond)
		for _, l := range []*rig{r, o} {
			wg.Go(func() {
				lease, err := l.AcquireAny(ctx, segs...)
				if err == nil {
					time.Sleep(time.Millisecond)
					_ = lease.Release(context.Background())
				} else if lease != nil {
					t.Error("both")
				}
			})
		}
		if i%3 == 0 {
			wg.Wait()
		}
		time.Sleep(200 * time.Microsecond)
		cancel()
	}
	wg.Wait()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && (r.authority.Held() > 0 || r.filter.Marks() > 0); {
		time.Sleep(10 * time.Millisecond)
	}
	r.clean(t)
	for _, l := range []*rig{r, o} {
		time.Sleep(20 * time.Millisecond)
		a, b, c := l.Internals()
		if a+b+c != 0 {
			t.Error(a, b, c)
		}
	}
}
