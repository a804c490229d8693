// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// Two lists instead of pairs would let the stale release of one key, batched
// with the live one of another, free the first key's successor: faults C1.
func TestPairs_matchEachKeyWithItsOwnToken_C1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		grants, errs := claimTogether(t, a, claimOf("ns/a"), claimOf("ns/b")) // one token
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		old, other := grants[0], grants[1]
		mustRelease(t, a, "ns/a", old)
		claimTogether(t, a, claimOf("ns/a")) // the successor
		// The stale pair and one whose token is the successor's, under another key.
		row, err := a.Look(t.Context(), "ns/a")
		if err != nil || !row.Held {
			t.Fatal(row, err)
		}
		ours := []pair{{"ns/a", old.Token}, {"ns/b", row.Token}, {"ns/b", other.Token}}
		mustExec(t, admin, a.tables.release(3), append(a.tables.pairArgs(ours), 1)...)
		if !isHeld(t, admin, "ns/a") {
			t.Error("a release freed a successor's row")
		}
		mustExec(t, admin, a.tables.settle(3), a.tables.pairArgs(ours)...)
		mustExec(t, admin, a.tables.settleWaiting(3), a.tables.pairArgs(ours)...)
		if !isHeld(t, admin, "ns/a") {
			t.Error("the settler freed a successor's row")
		}
		var before, after string
		const until = "SELECT expires_at FROM lease WHERE lock_key = 'ns/a'"
		if err := admin.QueryRowContext(t.Context(), until).Scan(&before); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, a.tables.renew(3), a.tables.renewArgs(ours, int64(3_000_000_000_000_000), time.Hour)...)
		if err := admin.QueryRowContext(t.Context(), until).Scan(&after); err != nil || before != after {
			t.Errorf("renewed a successor's row: %s to %s, %v", before, after, err)
		}
	})
}

// TestStaleBesideLive_P6 ends and renews two keys in one statement each. One of them
// has a successor, whose token is the other's too, because one claim granted both.
func TestStaleBesideLive_P6(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		stale := mustClaim(t, a, claimOf("ns/taken"))
		mustExec(t, admin, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) WHERE lock_key = 'ns/taken'")
		grants, errs := claimTogether(t, a, claimOf("ns/taken"), claimOf("ns/live"))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		successor, live := grants[0], grants[1]
		if successor.Token != live.Token || stale.Token == live.Token || successor.Fence <= stale.Fence {
			t.Fatalf("the test tests nothing: %+v, %+v, %+v", stale, successor, live)
		}
		until := func(key string) (at string) {
			if err := admin.QueryRowContext(t.Context(), "SELECT expires_at FROM lease WHERE lock_key = ?", []byte(key)).Scan(&at); err != nil {
				t.Fatal(err)
			}
			return at
		}
		var together atomic.Int32
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("l.expires_at") && r.Has("UPDATE") {
				together.Add(1)
			}
			return stack.Pass
		})
		taken, before := until("ns/taken"), until("ns/live")
		renewed := a.Renew(t.Context(), []driver.Renewal{
			{Key: "ns/taken", Token: stale.Token, TTL: time.Hour, Until: stale.Until},
			{Key: "ns/live", Token: live.Token, TTL: time.Hour, Until: live.Until},
		})
		if lossReason(renewed[0].Err) != driver.LossTaken || renewed[1].Err != nil {
			t.Errorf("renewed: %v, %v", renewed[0].Err, renewed[1].Err)
		}
		if until("ns/taken") != taken || until("ns/live") == before {
			t.Error("the stale renewal moved its successor's expiry, or the live one not its own")
		}
		if n := together.Swap(0); n != 1 {
			t.Errorf("%d statements renewed: the test tests nothing", n)
		}
		errs = releaseTogether(t, a, releaseOf("ns/taken", stale), releaseOf("ns/live", live))
		if lossReason(errs[0]) != driver.LossTaken || errs[1] != nil {
			t.Errorf("released: %v, %v", errs[0], errs[1])
		}
		if !isHeld(t, admin, "ns/taken") || isHeld(t, admin, "ns/live") {
			t.Error("the stale release freed its successor's row, or the live one not its own")
		}
		if n := together.Load(); n != 1 {
			t.Errorf("%d statements released: the test tests nothing", n)
		}
		mustRelease(t, a, "ns/taken", successor)
	})
}
