// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// However long a statement may take, a call without a deadline takes a second:
// faults E8, P10.
func TestAwait_longTimeout_isBoundByASecond_E8(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(4*time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), busyLimit) // the machine may be slow
		defer cancel()
		g, err := a.Claim(ctx, claimOf("ns/k"))
		if err != nil {
			t.Fatal(err)
		}
		p.BlackHole()
		var all sync.WaitGroup
		for what, call := range map[string]func() error{
			"Claim":   func() error { _, err := a.Claim(t.Context(), claimOf("ns/other")); return err },
			"Look":    func() error { _, err := a.Look(t.Context(), "ns/k"); return err },
			"Renew":   func() error { return renewOne(t, a, "ns/k", g, time.Minute).Err },
			"Release": func() error { return a.Release(t.Context(), releaseOf("ns/k", g)) },
		} {
			all.Go(func() {
				began := time.Now()
				if err := call(); !errors.Is(err, errNoAnswer) {
					t.Errorf("%s: %v", what, err)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("%s took %v, a second is its bound", what, took)
				}
			})
		}
		all.Wait()
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
	})
}

// A release that could not be done within its bound says why.
func TestRelease_atItsBound_saysWhy(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		g := mustClaim(t, a, claimOf("ns/k"))
		a.bound = time.Second
		mustExec(t, admin, "RENAME TABLE lease TO away")
		err := a.Release(t.Context(), releaseOf("ns/k", g))
		var classified *driver.Error
		if !errors.As(err, &classified) || classified.Class != driver.ClassConfig || classified.Advice == "" || !errors.Is(err, errNoAnswer) {
			t.Errorf("Release without a table: %v, want class config, and advice", err)
		}
		mustExec(t, admin, "RENAME TABLE away TO lease")
		within(t, 5*time.Second, "the key is free", func() bool { return !isHeld(t, admin, "ns/k") })
		within(t, 5*time.Second, "a release that was answered has left no failure", func() bool {
			return driver.ClassOf(a.sessions.unanswered("release")) == driver.ClassUnknown
		})
	})
}

// What nobody wants any more when the session is there is not sent.
func TestLane_abandonedWhileConnecting_isNotSent_B1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		var sent atomic.Int32
		arrive, connecting := make(chan struct{}), make(chan struct{}, 16)
		p.OnRequest(func(r stack.Request) stack.Action {
			switch {
			case r.Has("ns/left"):
				sent.Add(1)
			case r.Has("TRANSACTION ISOLATION"):
				connecting <- struct{}{}
				return stack.HoldUntil(arrive)
			}
			return stack.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() { _, _ = a.Claim(ctx, claimOf("ns/left")) })
		callers.Go(func() { _, _ = a.Look(ctx, "ns/left") })
		expiry := time.Now().Add(time.Second)
		callers.Go(func() {
			a.Renew(ctx, []driver.Renewal{{Key: "ns/left", TTL: time.Minute, Until: expiry}})
		})
		for range 3 {
			<-connecting
		}
		time.Sleep(time.Until(expiry))
		cancel()
		callers.Wait()
		close(arrive)
		mustClaim(t, a, claimOf("ns/k"))
		if _, err := a.Look(t.Context(), "ns/k"); err != nil {
			t.Error(err)
		}
		if got := renewOne(t, a, "ns/k", driver.Grant{Until: time.Now().Add(time.Minute)}, time.Minute); lossReason(got.Err) == 0 {
			t.Errorf("Renew with no token: %v", got.Err)
		}
		if n := sent.Load(); n != 0 {
			t.Errorf("%d statements were sent for callers who had left", n)
		}
	})
}

// A call either is refused by Close or is one that it waits for.
func TestLedger_begin_isBeforeClose(t *testing.T) {
	l := newLedger()
	var running sync.WaitGroup
	closed := make(chan struct{})
	begun := l.begin(func(call func()) {
		go func() {
			l.close()
			close(closed)
		}()
		select {
		case <-closed:
			t.Error("closed while a call begins: its goroutine is one too many for a wait under way")
		case <-time.After(100 * time.Millisecond):
		}
		running.Go(call)
	}, func() {})
	<-closed
	running.Wait()
	if !begun || !l.noCalls() {
		t.Errorf("begun %v, and %d calls go on", begun, l.calls)
	}
	if l.begin(running.Go, func() {}) {
		t.Error("begun after Close")
	}
}
