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

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

func openRig(t *testing.T, options ...tier.Option) *rig {
	t.Helper()
	return newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority(), options...)
}

// TestClose_waiters ends every wait, wherever it is, and refuses new calls.
func TestClose_waiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(ttl), tier.WithWait(time.Hour))
		held := r.peer(t, tier.WithTTL(time.Hour)).must(t, "k")
		const waiters = 20
		got := make(chan error, waiters)
		for range waiters {
			go func() {
				_, err := r.Acquire(context.Background(), "k")
				got <- err
			}()
		}
		time.Sleep(5 * time.Second)
		if err := r.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		for range waiters {
			if err := <-got; !errors.Is(err, tier.ErrClosed) {
				t.Errorf("a waiter got %v, want ErrClosed", err)
			}
		}
		before := r.calls.total()
		for _, call := range []func() error{
			func() error { _, err := r.Acquire(t.Context(), "k"); return err },
			func() error { _, err := r.TryAcquire(t.Context(), "k2"); return err },
			func() error {
				return r.Do(t.Context(), "k", func(context.Context, *tier.Lease) error { t.Error("ran"); return nil })
			},
		} {
			if err := call(); !errors.Is(err, tier.ErrClosed) {
				t.Errorf("after Close: %v, want ErrClosed", err)
			}
		}
		if r.calls.total() != before {
			t.Error("calls after Close reached the drivers")
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := r.filter.Marks(); n != 0 {
			t.Errorf("%d marks stand", n)
		}
	})
}

// TestClose_holders tells the holders, waits for them, and stops renewing.
func TestClose_holders_E10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(ttl))
		const held = 5
		for i := range held {
			lease := r.must(t, fmt.Sprintf("k%d", i))
			context.AfterFunc(lease.Context(), func() {
				if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrClosed) {
					t.Errorf("cause %v, want ErrClosed", cause)
				}
				if err := lease.Err(); !errors.Is(err, tier.ErrClosed) {
					t.Errorf("Err %v, want ErrClosed", err)
				}
				time.Sleep(time.Second)
				if err := lease.Release(context.Background()); err != nil {
					t.Errorf("release while closing: %v, want nil: the row was freed", err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		if err := r.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if took := time.Since(start); took < time.Second || took > 1200*time.Millisecond {
			t.Errorf("closed after %v, want just after the holders released", took)
		}
		r.clean(t)
		renewals := r.calls.count("renew")
		time.Sleep(5 * ttl)
		if r.calls.count("renew") != renewals {
			t.Error("renewed after Close")
		}
	})
}

// TestClose_leftovers names what is not released and leaves it to expire.
func TestClose_leftovers_N2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(ttl))
		leases := make([]*tier.Lease, 3)
		for i := range leases {
			leases[i] = r.must(t, fmt.Sprintf("left-%d", i))
		}
		gone := r.must(t, "given-back")
		if err := gone.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := r.Close(ctx)
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("closed after %v, its context had 1s", took)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v, want the context's error with the leftovers", err)
		}
		for i := range leases {
			if !strings.Contains(err.Error(), fmt.Sprintf("left-%d", i)) {
				t.Errorf("%q does not name left-%d", err, i)
			}
		}
		if strings.Contains(err.Error(), "given-back") {
			t.Errorf("%q names what was released", err)
		}
		if n := r.authority.Held(); n != 3 {
			t.Errorf("%d rows held, want the three to expire by themselves", n)
		}
		time.Sleep(ttl)
		if n := r.authority.Held(); n != 0 {
			t.Errorf("%d rows still held after a TTL: something renews", n)
		}
		for _, lease := range leases {
			if err := lease.Err(); !errors.Is(err, tier.ErrClosed) {
				t.Errorf("Err: %v, want ErrClosed", err)
			}
			_ = lease.Release(t.Context())
		}
	})
}

// TestClose_drain renews for a while before it tells the holders.
func TestClose_drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drain = 3 * ttl
		r := openRig(t, tier.WithTTL(ttl), tier.WithDrain(drain))
		early, late := r.must(t, "early"), r.must(t, "late")
		closed := make(chan error, 1)
		start := time.Now()
		go func() { closed <- r.Close(context.Background()) }()
		synctest.Wait()
		if _, err := r.TryAcquire(t.Context(), "new"); !errors.Is(err, tier.ErrClosed) {
			t.Errorf("while draining: %v, want ErrClosed", err)
		}
		time.Sleep(2 * ttl)
		if early.Err() != nil || late.Err() != nil {
			t.Errorf("not renewed while draining: %v, %v", early.Err(), late.Err())
		}
		if err := early.Release(t.Context()); err != nil {
			t.Error(err)
		}
		<-late.Done()
		if at := time.Since(start); at != drain {
			t.Errorf("the holder was told after %v, want %v", at, drain)
		}
		if err := late.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
		synctest.Wait()
		r.clean(t)
	})
}

// TestClose_drainEndsEarly does not wait when nothing is held any more.
func TestClose_drainEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(ttl), tier.WithDrain(time.Hour))
		lease := r.must(t, "k")
		time.AfterFunc(time.Second, func() { _ = lease.Release(context.Background()) })
		start := time.Now()
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("closed after %v", took)
		}
	})
}

// TestClose_twice waits for the first and answers nil.
func TestClose_twice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(ttl))
		lease := r.must(t, "k")
		time.AfterFunc(2*time.Second, func() { _ = lease.Release(context.Background()) })
		first := make(chan error, 1)
		go func() { first <- r.Close(context.Background()) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("second, with a shorter context: %v", err)
		}
		start := time.Now()
		if err := r.Close(t.Context()); err != nil {
			t.Errorf("third: %v", err)
		}
		if time.Since(start) != time.Second {
			t.Errorf("the third did not wait for the first")
		}
		if err := <-first; err != nil {
			t.Errorf("first: %v", err)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Errorf("when closed: %v", err)
		}
	})
}

// TestClose_hangs_P10 returns within its context whatever hangs.
func TestClose_hangs_P10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(time.Minute))
		lease := r.must(t, "k")
		r.must(t, "kept")
		stuck := make(chan struct{})
		r.calls.on(onOp("clear", func(context.Context, call) error { <-stuck; return nil }), nil)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		err := r.Close(ctx)
		if took := time.Since(start); took > 2100*time.Millisecond {
			t.Errorf("closed after %v, its context had 2s", took)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "kept") {
			t.Errorf("close: %v, want the context's error and the key left", err)
		}
		close(stuck)
	})
}

// TestClose_authorityDown_N2 closes with a hundred leases that nobody can give
// back: each is tried, all in a bounded time.
func TestClose_authorityDown_N2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(ttl))
		const n = 100
		for i := range n {
			lease := r.must(t, fmt.Sprintf("k%d", i))
			context.AfterFunc(lease.Context(), func() {
				if err := lease.Release(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("release of a silent authority: %v", err)
				}
			})
		}
		r.authority.Silence()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		if err := r.Close(ctx); err != nil {
			t.Errorf("close: %v", err) // every holder called Release: nothing is left to name
		}
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("closed after %v, want about the bound of one release", took)
		}
		if got := r.calls.count("release"); got != n {
			t.Errorf("%d releases, want %d", got, n)
		}
		r.authority.Up()
		time.Sleep(time.Second)
	})
}

// TestClose_grantUnderWay closes while a claim is on its way back: the grant is
// nobody's and is freed.
func TestClose_grantUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRig(t, tier.WithTTL(time.Hour))
		r.calls.on(nil, onOp("claim", func(context.Context, call) error { time.Sleep(time.Second); return nil }))
		got := make(chan error, 1)
		go func() {
			lease, err := r.Acquire(context.Background(), "k")
			if err == nil {
				err = lease.Release(context.Background())
				t.Error("granted by a closed locker")
			}
			got <- err
		}()
		time.Sleep(500 * time.Millisecond)
		if err := r.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-got; !errors.Is(err, tier.ErrClosed) {
			t.Errorf("acquire: %v, want ErrClosed", err)
		}
		time.Sleep(time.Second)
		r.clean(t)
	})
}

var _ driver.Authority = watchedAuthority{}

// After Close the servers are not asked: the drivers are closed, and the lease
// was left to expire.
func TestRelease_afterClose_sendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority())
		lease := r.must(t, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); err == nil {
			t.Error("Close left a lease and answered nil")
		}
		synctest.Wait() // Close gave up waiting for the mark's delete, which is not Release's
		before := r.calls.total()
		if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrClosed) {
			t.Errorf("release: %v, want ErrClosed", err)
		}
		if n := r.calls.total() - before; n != 0 {
			t.Errorf("%d calls of closed drivers", n)
		}
	})
}
