// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// A row has its token past its expiry, and it is nobody's lease: Look shows
// both, and its release is a loss that says so.
func TestLook_expiredRow_C2(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		g := mustClaim(t, a, claimOf("ns/k"))
		look := func() driver.Row {
			t.Helper()
			row, err := a.Look(t.Context(), "ns/k")
			if err != nil {
				t.Fatal(err)
			}
			return row
		}
		if row := look(); !row.Held || row.Token != g.Token || row.Left <= 0 {
			t.Errorf("held: %+v", row)
		}
		mustExec(t, admin, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
		if row := look(); row.Held || row.Token != g.Token || row.Fence != g.Fence || row.Holder != "test" || row.Left != 0 {
			t.Errorf("expired: %+v", row)
		}
		if err := a.Release(t.Context(), releaseOf("ns/k", g)); lossReason(err) != driver.LossExpired {
			t.Errorf("Release: %v, want a loss by expiry", err)
		}
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
		if row := look(); row.Held || !row.Token.IsZero() || row.Left != 0 {
			t.Errorf("free: %+v", row)
		}
	})
}
