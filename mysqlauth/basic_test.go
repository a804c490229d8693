// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestAuthority_lifeOfALease(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a := open(t, d.DSN())
		first := mustClaim(t, a, driver.Claim{Key: "ns/k", TTL: 10 * time.Second, Holder: "me", Block: 100})
		if want := "`" + d.Name + "`.`lease`"; first.Table != want {
			t.Errorf("Table = %s, want %s", first.Table, want)
		}
		var refusal *driver.Refusal
		if _, err := a.Claim(t.Context(), claimOf("ns/k")); !errors.As(err, &refusal) || refusal.Busy || refusal.Holder != "me" ||
			refusal.Left < 9*time.Second || refusal.Left > 10*time.Second {
			t.Errorf("second claim: %v", err)
		}
		row, err := a.Look(t.Context(), "ns/k")
		if err != nil || !row.Held || row.Token != first.Token || row.Fence != first.Fence+99 || row.Holder != "me" {
			t.Errorf("Look = %+v, %v", row, err)
		}
		if got := renewOne(t, a, "ns/k", first, 20*time.Second); got.Err != nil || time.Until(got.Until) < 19*time.Second {
			t.Errorf("Renew = %+v", got)
		}
		mustRelease(t, a, "ns/k", first)
		var loss *driver.Loss
		if err := a.Release(t.Context(), releaseOf("ns/k", first)); !errors.As(err, &loss) || loss.Reason != driver.LossFreed {
			t.Errorf("second release: %v", err)
		}
		if got := renewOne(t, a, "ns/k", first, time.Second); !errors.As(got.Err, &loss) || loss.Reason != driver.LossFreed {
			t.Errorf("renewal after release: %v", got.Err)
		}
		second := mustClaim(t, a, claimOf("ns/k"))
		if second.Fence != first.Fence+100 {
			t.Errorf("fence %d after a block of 100 from %d", second.Fence, first.Fence)
		}
		if got := renewOne(t, a, "ns/k", first, time.Second); !errors.As(got.Err, &loss) || loss.Reason != driver.LossTaken || loss.Fence != second.Fence {
			t.Errorf("renewal after takeover: %v", got.Err)
		}
		if err := a.Release(t.Context(), releaseOf("ns/k", first)); !errors.As(err, &loss) || loss.Reason != driver.LossTaken {
			t.Errorf("release after takeover: %v", err)
		}
		mustRelease(t, a, "ns/k", second)
	})
}
