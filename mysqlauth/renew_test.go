// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// One guarded transaction must not cost the other leases of the process.
func TestRenew_neverWaits_lockedRow(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		var rs []driver.Renewal
		for i := range 3 {
			key := fmt.Sprintf("ns/k%d", i)
			g := mustClaim(t, a, claimOf(key))
			rs = append(rs, driver.Renewal{Key: key, Token: g.Token, TTL: 30 * time.Second, Until: g.Until})
		}
		unlock := lockRow(t, admin, "ns/k1")
		began := time.Now()
		got := a.Renew(t.Context(), rs)
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("renewals waited for a locked row: %v", took)
		}
		for _, i := range []int{0, 2} {
			if left := time.Until(got[i].Until); got[i].Err != nil || left < 25*time.Second || left > 30*time.Second {
				t.Errorf("renewal %d: %v left, %v", i, left, got[i].Err)
			}
		}
		if !isBusy(got[1].Err) {
			t.Errorf("renewal of the locked row: %+v", got[1])
		}
		unlock()
		if got := a.Renew(t.Context(), rs[1:2])[0]; got.Err != nil {
			t.Errorf("renewal after the transaction: %v", got.Err)
		}
	})
}

// A renewal that the server executes late takes no time away from a younger
// one, and none comes after not_after.
func TestRenew_late_takesNothingAway(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		c := claimOf("ns/k")
		c.TTL = time.Hour
		g := mustClaim(t, a, c)
		ours := []pair{{"ns/k", g.Token}}
		left := func() (s int) {
			t.Helper()
			if err := admin.QueryRowContext(t.Context(), "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), expires_at) FROM lease").Scan(&s); err != nil {
				t.Fatal(err)
			}
			return s
		}
		mustExec(t, admin, a.tables.renew(1), a.tables.renewArgs(ours, int64(3_000_000_000_000_000), time.Hour-4*time.Second)...)
		if s := left(); s < 3597 {
			t.Errorf("a renewal left %d s of an hour", s)
		}
		past := time.Now().Add(-time.Minute).UnixMicro()
		mustExec(t, admin, a.tables.renew(1), a.tables.renewArgs(ours, past, 10*time.Hour)...)
		if s := left(); s > 3600 {
			t.Errorf("a renewal past its not_after was executed: %d s left", s)
		}
	})
}

// The fence is the grant's: a renewal never touches it, nor does a lost reply
// end a lease (faults A6, A10).
func TestRenew_keepsTheFence_A10(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		g := mustClaim(t, a, claimOf("ns/k"))
		for _, action := range []stack.Action{stack.HangUp, stack.SQLError(1213, "Deadlock found"), stack.Swallow} {
			hit := p.LoseReply(1, stack.Having("GREATEST(l.expires_at"), action)
			got := renewOne(t, a, "ns/k", g, 10*time.Second)
			<-hit
			if lossReason(got.Err) != 0 {
				t.Errorf("a fault became a loss: %v", got.Err)
			}
			if got := renewOne(t, a, "ns/k", g, 10*time.Second); got.Err != nil {
				t.Errorf("renewal after a fault: %v", got.Err)
			}
		}
		if row, err := a.Look(t.Context(), "ns/k"); err != nil || row.Fence != g.Fence || row.Token != g.Token {
			t.Errorf("after renewals: %+v, %v; want fence %d", row, err, g.Fence)
		}
	})
}

// Nothing is sent for a lease that has expired by its own clock, and since
// nobody was asked, it is not called lost.
func TestRenew_pastUntil_isNotSent(t *testing.T) {
	a := open(t, "user:secret@tcp(127.0.0.1:1)/db")
	got := a.Renew(t.Context(), []driver.Renewal{{Key: "ns/k", TTL: time.Second, Until: time.Now()}})
	if !errors.Is(got[0].Err, errNotSent) || driver.ClassOf(got[0].Err) != driver.ClassTransient {
		t.Errorf("renewal: %v", got[0].Err)
	}
}

// A lease found free or foreign is never made again: faults C12.
func TestRenew_neverRecreates_C12(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		g := mustClaim(t, a, claimOf("ns/k"))
		mustExec(t, admin, "DELETE FROM lease")
		if got := renewOne(t, a, "ns/k", g, 10*time.Second); lossReason(got.Err) != driver.LossFreed {
			t.Errorf("renewal of a row that is gone: %v", got.Err)
		}
		if isHeld(t, admin, "ns/k") {
			t.Error("a renewal made a row")
		}
	})
}

// Many leases of several TTLs and twice the same key, in one call; answers in
// the order of the requests.
func TestRenew_many(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		var claims []driver.Claim
		for i := range 1200 {
			claims = append(claims, claimOf(fmt.Sprintf("ns/k%d", i)))
		}
		grants, errs := claimTogether(t, a, claims...)
		var rs []driver.Renewal
		for i, g := range grants {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			r := driver.Renewal{Key: claims[i].Key, Token: g.Token, TTL: time.Duration(60+i%3) * time.Second, Until: g.Until}
			if i%100 == 99 {
				r.Token = driver.NewToken()
			}
			rs = append(rs, r)
		}
		rs = append(rs, rs[0])
		for i, got := range a.Renew(t.Context(), rs) {
			if stolen := i%100 == 99; stolen != (lossReason(got.Err) == driver.LossTaken) || stolen != (got.Err != nil) {
				t.Errorf("renewal %d: %v", i, got.Err)
			}
			if left := time.Until(got.Until); got.Err == nil && (left > rs[i].TTL || left < rs[i].TTL-20*time.Second) {
				t.Errorf("renewal %d of %v has %v left", i, rs[i].TTL, left)
			}
		}
	})
}
