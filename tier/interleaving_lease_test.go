// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

type manual struct{}

type lateAuthority struct{ *tiertest.Authority }

func (a lateAuthority) Renew(ctx context.Context, rs []driver.Renewal) []driver.Renewed {
	if time.Now().After(rs[0].Until) {
		return []driver.Renewed{{Err: &driver.Loss{Reason: driver.LossExpired}}}
	}
	if ctx.Value(manual{}) != nil {
		return []driver.Renewed{{Err: &driver.Refusal{Busy: true}}}
	}
	return a.Authority.Renew(ctx, rs)
}

// TestRelease_duringRefresh_C6: the mark is being refreshed when its lease is released; a try of the same process waits for its delete.
func TestRelease_duringRefresh_C6(t *testing.T) {
	r := newRig(t, tier.WithTTL(600*time.Millisecond))
	in, out := make(chan struct{}, 10), make(chan struct{})
	r.calls.on(onOp("refresh", func(context.Context, call) error { in <- struct{}{}; <-out; return nil }), nil)
	lease := r.must(t, "k")
	<-in
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { close(out) })
	next, err := r.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("the key was released, and a try of the same process: %v", err)
	}
	_ = next.Release(t.Context())
}

// TestRelease_renewalAnsweredMeanwhile_A12: a renewal is answered while the release is on its way.
func TestRelease_renewalAnsweredMeanwhile_A12(t *testing.T) {
	r := newRig(t, tier.WithTTL(900*time.Millisecond))
	renewing, answer, releasing, free := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var late int
	released := false
	r.calls.on(func(ctx context.Context, c call) error {
		if c.keys == nil || c.keys[0] != namespace+"/k" {
			return nil
		}
		switch {
		case c.op == "renew" && c.n == 1:
			close(renewing)
			<-answer
		case c.op == "renew":
			mu.Lock()
			if released {
				late++
			}
			mu.Unlock()
		case c.op == "release":
			close(releasing)
			<-free
		}
		return nil
	}, nil)
	lease := r.must(t, "k")
	<-renewing
	done := make(chan error, 1)
	go func() { done <- lease.Release(context.Background()) }()
	<-releasing
	close(answer) // the renewal is answered while the release is on its way
	time.Sleep(20 * time.Millisecond)
	other := r.must(t, "other", tier.WithTTL(time.Minute)) // keeps the renewer alive
	close(free)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	released = true
	mu.Unlock()
	time.Sleep(700 * time.Millisecond)
	mu.Lock()
	if late > 0 {
		t.Errorf("%d renewals were sent for a lease whose Release had returned", late)
	}
	mu.Unlock()
	_ = other.Release(t.Context())
}

// TestRelease_hangingIsNotRenewed_A1: releases hang, since the row is locked or their connection dead, and renewals do not.
func TestRelease_hangingIsNotRenewed_A1(t *testing.T) {
	r := newRig(t, tier.WithTTL(900*time.Millisecond))
	renewing, answer := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	sent := 0
	begun := false
	r.calls.on(func(ctx context.Context, c call) error {
		switch {
		case c.op == "renew" && c.n == 1:
			close(renewing)
			<-answer
		case c.op == "renew":
			mu.Lock()
			if begun {
				sent++
			}
			mu.Unlock()
		case c.op == "release":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, nil)
	lease := r.must(t, "k")
	<-renewing
	done := make(chan error, 1)
	mu.Lock()
	begun = true
	mu.Unlock()
	go func() { done <- lease.Release(context.Background()) }()
	time.Sleep(20 * time.Millisecond)
	close(answer)
	t.Log(<-done)
	mu.Lock()
	if sent > 0 {
		t.Errorf("%d new renewals were sent after Release had begun", sent)
	}
	mu.Unlock()
	left := r.row(t, "k").Left
	t.Logf("row has %v left", left)
	r.calls.on(nil, nil)
}

// TestVerify_releasedMeanwhile: the server saw the row that the release had freed.
func TestVerify_releasedMeanwhile(t *testing.T) {
	r := newRig(t)
	in, out := make(chan struct{}), make(chan struct{})
	lease := r.must(t, "k")
	r.calls.on(onOp("look", func(context.Context, call) error { close(in); <-out; return nil }), nil)
	got := make(chan error, 1)
	go func() { got <- lease.Verify(context.Background()) }()
	<-in
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(out)
	if err := <-got; err == nil {
		t.Error("Verify answered nil (still ours when the server looked) after the server had shown the row free")
	}
}

// TestLease_logHookMayAsk_G8: a log sink asks the lease that is being logged.
func TestLease_logHookMayAsk_G8(t *testing.T) {
	var lease *tier.Lease
	var mu sync.Mutex
	log := zap.NewExample(zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == "lease lost" {
			mu.Lock()
			l := lease
			mu.Unlock()
			_ = l.Err()
		}
		return nil
	}))
	a := tiertest.NewAuthority()
	l, _ := tier.New(nil, a, tier.WithLogger(log))
	le, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	lease = le
	mu.Unlock()
	a.Revoke()
	got := make(chan error, 1)
	go func() { got <- le.Verify(context.Background()) }()
	select {
	case err := <-got:
		if !errors.Is(err, tier.ErrLost) {
			t.Errorf("verify of a revoked lease: %v", err)
		}
	case <-time.After(2 * time.Second):
		t.Fatal("a log hook that asks the lease deadlocks it")
	}
}

// TestRenew_besidesTheRenewer: a renewal by hand is busy while the renewer moves the expiry.
func TestRenew_besidesTheRenewer(t *testing.T) {
	l, _ := tier.New(nil, lateAuthority{tiertest.NewAuthority()}, tier.WithTTL(600*time.Millisecond))
	defer func() { _ = l.Close(context.Background()) }()
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	err = lease.Renew(context.WithValue(t.Context(), manual{}, true))
	if errors.Is(err, tier.ErrLost) {
		t.Errorf("%v; the renewer had renewed it until %v from now", err, time.Until(lease.Deadline()))
	}
	_ = lease.Release(t.Context())
}

// TestRenewer_forgetsWhatIsReleased_A2: a renewal is answered between Release and its answer.
func TestRenewer_forgetsWhatIsReleased_A2(t *testing.T) {
	r := newRig(t, tier.WithTTL(time.Minute))
	in, answer := make(chan struct{}), make(chan struct{})
	lease := r.must(t, "k", tier.WithTTL(900*time.Millisecond))
	releasing, free := make(chan struct{}), make(chan struct{})
	r.calls.on(func(ctx context.Context, c call) error {
		if c.op == "renew" && c.n == 1 {
			close(in)
			<-answer
		}
		if c.op == "release" {
			close(releasing)
			<-free
		}
		return nil
	}, nil)
	<-in
	done := make(chan error, 1)
	go func() { done <- lease.Release(context.Background()) }()
	<-releasing
	close(answer)
	time.Sleep(20 * time.Millisecond)
	close(free)
	if err := <-done; err != nil {
		t.Errorf("release: %v", err)
	}
	time.Sleep(2 * time.Second)
	if _, held, due := r.Internals(); due != 0 {
		t.Errorf("2 s after the only lease was released: held %d, heap %d", held, due)
	}
}
