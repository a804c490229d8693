// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// grantInSecret grants a key under a token that nobody was told, as a claim
// whose reply was lost does.
func grantInSecret(t *testing.T, a *Authority, key string) driver.Token {
	t.Helper()
	g := mustClaim(t, a, claimOf(key))
	return g.Token
}

func entriesOf(a *Authority) int {
	a.settler.mu.Lock()
	defer a.settler.mu.Unlock()
	return len(a.settler.entries)
}

// One locked row holds nobody else up, and is freed when it can be.
func TestSettle_lockedRow_waitsAlone(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		keys := []string{"ns/a", "ns/b", "ns/c", "ns/d"}
		grants, errs := claimTogether(t, a, claimOf(keys[0]), claimOf(keys[1]), claimOf(keys[2]), claimOf(keys[3]))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		unlock := lockRow(t, admin, "ns/b")
		a.settler.add(keys, grants[0].Token, time.Now().UnixMicro())
		within(t, 6*time.Second, "the other keys are free", func() bool {
			return !isHeld(t, admin, "ns/a") && !isHeld(t, admin, "ns/c") && !isHeld(t, admin, "ns/d")
		})
		if !isHeld(t, admin, "ns/b") {
			t.Error("the locked row was freed under its transaction")
		}
		unlock()
		within(t, 5*time.Second, "the locked key is free", func() bool { return !isHeld(t, admin, "ns/b") })
		within(t, 10*time.Second, "nothing is left to settle", func() bool { return entriesOf(a) == 0 })
	})
}

// Rows that transactions have, ours or taken by others since, delay no other
// unknown outcome, whatever their number.
func TestSettle_lockedRows_delayNobody(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		waiting := countWaiting(p, a.tables.settleWaiting(1))
		var locked []string
		token := driver.NewToken()
		for i := range 12 {
			key := fmt.Sprintf("ns/locked%02d", i)
			locked = append(locked, key)
			ours := token
			if i%2 == 1 { // another's, whose transaction it is
				ours = driver.NewToken()
			}
			mustExec(t, admin, "INSERT INTO lease VALUES (?, ?, 1, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)", []byte(key), ours[:])
		}
		tx, err := admin.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		for _, key := range locked {
			mustExec(t, tx, "UPDATE lease SET guard = guard + 1 WHERE lock_key = ?", []byte(key))
		}
		a.settler.add(locked, token, time.Now().UnixMicro())
		for i := range 3 {
			key := fmt.Sprintf("ns/free%d", i)
			a.settler.add([]string{key}, grantInSecret(t, a, key), time.Now().UnixMicro())
			within(t, 3*time.Second, "another's unknown outcome", func() bool { return !isHeld(t, admin, key) })
		}
		within(t, 10*time.Second, "rows are waited for", func() bool { return waiting() > 0 })
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		within(t, 5*time.Second, "the locked rows are free, another's are not", func() bool {
			held := 0
			for _, key := range locked {
				if isHeld(t, admin, key) {
					held++
				}
			}
			return held == 6
		})
		within(t, 10*time.Second, "nothing is left to settle", func() bool { return entriesOf(a) == 0 })
		if most := waiting(); most > 2 {
			t.Errorf("%d sessions of 3 waited for rows at a time", most)
		}
	})
}

// It frees what it was given, never a successor, and looks a second time: a
// claim begun in time may have waited for a lock.
func TestSettle_looksTwice_andSparesSuccessors(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		token := driver.NewToken()
		next := mustClaim(t, a, claimOf("ns/k"))
		a.settler.add([]string{"ns/k", "ns/late"}, token, time.Now().UnixMicro())
		within(t, 5*time.Second, "the first pass", func() bool {
			a.settler.mu.Lock()
			defer a.settler.mu.Unlock()
			return len(a.settler.entries) == 2 && a.settler.entries[1].stage == settleAgain
		})
		mustExec(t, admin, "INSERT INTO lease VALUES ('ns/late', ?, 1, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)", token[:])
		within(t, 10*time.Second, "nothing is left to settle", func() bool { return entriesOf(a) == 0 })
		if isHeld(t, admin, "ns/late") {
			t.Error("a claim that came between the passes stays")
		}
		mustRelease(t, a, "ns/k", next)
	})
}

// While the server's time may be before not_after, a packet on its way could
// still be executed: the settler keeps at it.
func TestSettle_notBeforeNotAfter(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(100*time.Millisecond)), openAdmin(t, d)
		var now int64
		if err := admin.QueryRowContext(t.Context(), "SELECT "+serverNow).Scan(&now); err != nil {
			t.Fatal(err)
		}
		token := driver.NewToken()
		a.settler.add([]string{"ns/k"}, token, now+(6*time.Second).Microseconds())
		time.Sleep(4 * time.Second) // two passes' time
		if entriesOf(a) != 1 {
			t.Fatal("the settler ended before not_after")
		}
		mustExec(t, admin, "INSERT INTO lease VALUES ('ns/k', ?, 1, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)", token[:])
		within(t, 10*time.Second, "the key is free", func() bool { return !isHeld(t, admin, "ns/k") })
		within(t, 10*time.Second, "nothing is left to settle", func() bool { return entriesOf(a) == 0 })
	})
}

// With the server away everything waits, and is done when it is back.
func TestSettle_overAnOutage(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, p := openAdmin(t, d), proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		token := grantInSecret(t, a, "ns/k")
		p.Cut()
		a.settler.add([]string{"ns/k"}, token, time.Now().UnixMicro())
		time.Sleep(time.Second)
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
		within(t, 5*time.Second, "the key is free", func() bool { return !isHeld(t, admin, "ns/k") })
	})
}

func TestClose_namesWhatIsLeft(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a, err := Open(d.DSNAt(p.Addr()), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		released := mustClaim(t, a, claimOf("ns/released"))
		p.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_ = a.Release(ctx, releaseOf("ns/released", released))
		a.settler.add([]string{"ns/unknown"}, driver.NewToken(), time.Now().UnixMicro())
		ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		err = a.Close(ctx)
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("Close took %v of 500 ms", took)
		}
		var left *LeftError
		if !errors.As(err, &left) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Close: %v", err)
		}
		slices.Sort(left.Keys)
		if !slices.Equal(left.Keys, []string{"ns/released", "ns/unknown"}) {
			t.Errorf("left %q", left.Keys)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if _, err := a.Claim(t.Context(), claimOf("ns/k")); !errors.Is(err, ErrClosed) {
			t.Errorf("Claim after Close: %v", err)
		}
		if err := a.Release(t.Context(), releaseOf("ns/k", released)); !errors.Is(err, ErrClosed) {
			t.Errorf("Release after Close: %v", err)
		}
		if got := renewOne(t, a, "ns/k", released, time.Second); !errors.Is(got.Err, ErrClosed) {
			t.Errorf("Renew after Close: %v", got.Err)
		}
	})
}

// Close waits for releases that go on behind their callers.
func TestClose_waitsForReleases(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a, err := Open(d.DSN(), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		g := mustClaim(t, a, claimOf("ns/k"))
		unlock := lockRow(t, admin, "ns/k")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := a.Release(ctx, releaseOf("ns/k", g)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v", err)
		}
		time.AfterFunc(500*time.Millisecond, unlock)
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if isHeld(t, admin, "ns/k") {
			t.Error("Close did not wait for the release")
		}
	})
}
