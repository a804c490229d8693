// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// One renewal of a long lease whose reply is swallowed does not cost a short one its time.
func TestRenew_silentConnection_delaysNoOther_E8(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		long := mustClaim(t, a, driver.Claim{Key: "ns/long", TTL: time.Minute, Block: 1})
		short := mustClaim(t, a, driver.Claim{Key: "ns/short", TTL: 3 * time.Second, Block: 1})
		if r := renewOne(t, a, "ns/short", short, 3*time.Second); r.Err != nil {
			t.Fatal(r.Err)
		} else {
			short.Until = r.Until
		}
		hit := p.LoseReply(1, stack.Having("GREATEST(l.expires_at"), stack.Swallow)
		go func() { renewOne(t, a, "ns/long", long, time.Minute) }()
		<-hit
		for time.Now().Before(short.Until) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			r := a.Renew(ctx, []driver.Renewal{{Key: "ns/short", Token: short.Token, TTL: 3 * time.Second, Until: short.Until}})[0]
			cancel()
			if r.Err == nil {
				return
			}
		}
		t.Errorf("the server is up, one connection went silent, and the 3 s lease died unrenewed")
	})
}

// The server freed nothing and said so; that the read-back was lost makes no release of it.
func TestRelease_lostReadBack_isNoRelease_C3(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a, other := open(t, d.DSNAt(p.Addr())), open(t, d.DSN(), WithTimeout(busyLimit))
		g := mustClaim(t, a, driver.Claim{Key: "ns/k", TTL: 500 * time.Millisecond, Block: 1})
		time.Sleep(600 * time.Millisecond)
		mustClaim(t, other, claimOf("ns/k"))
		time.Sleep(1500 * time.Millisecond) // lanes idle
		p.LoseReply(1, stack.Having("SELECT lock_key, token, fence"), stack.HangUp)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		g.Until = time.Now().Add(3 * time.Second) // as if a renewal had
		err := a.Release(ctx, releaseOf("ns/k", g))
		if lossReason(err) != driver.LossTaken {
			t.Errorf("Release of a lease taken by another long ago: %v", err)
		}
	})
}

// Nothing could be sent until another had the key.
func TestRelease_nothingSent_isNoRelease_C3(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a, other := open(t, d.DSNAt(p.Addr())), open(t, d.DSN(), WithTimeout(busyLimit))
		g := mustClaim(t, a, driver.Claim{Key: "ns/k", TTL: time.Second, Block: 1})
		time.Sleep(1300 * time.Millisecond)
		p.BlackHole()
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			done <- a.Release(ctx, releaseOf("ns/k", g))
		}()
		mustClaim(t, other, claimOf("ns/k"))
		time.Sleep(600 * time.Millisecond)
		_ = p.Heal()
		if err := <-done; lossReason(err) != driver.LossTaken {
			t.Errorf("Release: %v", err)
		}
	})
}

// A release that waits for somebody's transaction when Close gives up is named.
func TestClose_namesWhatWaitsForARow_N2(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a, err := Open(d.DSN(), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		g := mustClaim(t, a, claimOf("ns/k"))
		lockRow(t, admin, "ns/k")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_ = a.Release(ctx, releaseOf("ns/k", g))
		ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err = a.Close(ctx)
		if left, ok := errors.AsType[*LeftError](err); !ok || !slices.Equal(left.Keys, []string{"ns/k"}) {
			t.Errorf("Close: %v; held %v", err, isHeld(t, admin, "ns/k"))
		}
	})
}

// So are those that a silent server keeps in the queue.
func TestClose_namesWhatIsQueued_N2(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a, err := Open(d.DSNAt(p.Addr()), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		gs := map[string]driver.Grant{}
		for i := range 5 {
			key := fmt.Sprintf("ns/k%d", i)
			gs[key], want = mustClaim(t, a, claimOf(key)), append(want, key)
		}
		p.BlackHole()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for key, g := range gs {
			wg.Go(func() { _ = a.Release(ctx, releaseOf(key, g)) })
		}
		wg.Wait()
		ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		err = a.Close(ctx)
		_ = p.Heal()
		left, ok := errors.AsType[*LeftError](err)
		if !ok {
			t.Fatalf("Close: %v", err)
		}
		if slices.Sort(left.Keys); !slices.Equal(left.Keys, want) {
			t.Errorf("left %q of %q", left.Keys, want)
		}
	})
}

// A sweeper whose host vanishes in its transaction keeps new keys waiting for seconds, not for hours.
func TestSweep_vanished_freesTheFloor(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(time.Second))
		b := open(t, d.DSN())
		if err := a.Prepare(t.Context(), "ns/old"); err != nil {
			t.Fatal(err)
		}
		mustExec(t, openAdmin(t, d), age)
		in := make(chan struct{})
		p.OnRequest(func(r stack.Request) stack.Action {
			if stack.Having("SET fence = GREATEST")(r) {
				p.BlackHole() // the sweeper's host is gone, no FIN
				close(in)
			}
			return stack.Pass
		})
		go func() { _, _ = a.Sweep(context.Background()) }()
		<-in
		time.Sleep(3 * time.Second) // well after the client's own limits
		for i := range 3 {
			_, err := b.Claim(t.Context(), claimOf(fmt.Sprintf("ns/new%d", i)))
			if err != nil {
				t.Errorf("3 s after the sweeper's host vanished: %v", err)
			}
		}
		p.OnRequest(nil)
		_ = p.Heal()
	})
}

// The floor is locked for a moment: that is contention, and no fault of the server.
func TestClaim_newKey_lockWaitIsContention(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a := open(t, d.DSN())
		mustClaim(t, a, claimOf("ns/warm"))
		tx, err := admin.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, tx, "UPDATE floor SET fence = fence + 1 WHERE id = 1")
		time.AfterFunc(700*time.Millisecond, func() { _ = tx.Rollback() })
		if _, err = a.Claim(t.Context(), claimOf("ns/new")); err != nil && driver.ClassOf(err) != driver.ClassContention {
			t.Errorf("a lock wait is class %v: %v", driver.ClassOf(err), err)
		}
	})
}

// A renewal of unknown outcome moved the expiry, the server was away past the one we know, and the key is freed when it is back.
func TestRelease_outlivesTheLocalExpiry_C7(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		admin := openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		g := mustClaim(t, a, driver.Claim{Key: "ns/k", TTL: 2 * time.Second, Block: 1})
		p.LoseReply(1, stack.Having("GREATEST(l.expires_at"), stack.HangUp)
		if r := renewOne(t, a, "ns/k", g, 30*time.Second); r.Err == nil {
			t.Fatal("renewed")
		}
		p.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_ = a.Release(ctx, releaseOf("ns/k", g))
		time.Sleep(time.Until(g.Until.Add(2700 * time.Millisecond)))
		_ = p.Heal()
		within(t, 10*time.Second, "free after the outage", func() bool { return !isHeld(t, admin, "ns/k") })
	})
}

// A date that a clock left which was set back by an hour is mended by the next renewal.
func TestRenew_afterTheClockWentBack(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		g := mustClaim(t, a, driver.Claim{Key: "ns/k", TTL: 5 * time.Second, Block: 1})
		// as a step back by an hour after the grant leaves the row
		mustExec(t, admin, "UPDATE lease SET expires_at = expires_at + INTERVAL 1 HOUR WHERE lock_key = 'ns/k'")
		for range 3 {
			r := renewOne(t, a, "ns/k", g, 5*time.Second)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			g.Until = r.Until
		}
		row, err := a.Look(t.Context(), "ns/k")
		if err != nil {
			t.Fatal(err)
		}
		if row.Left > 10*time.Second {
			t.Errorf("after three renewals of 5 s a crash blocks the key for %v", row.Left)
		}
	})
}
