// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// faults J17: the fence never wraps and never leaves int64.
func TestClaim_fenceAtMaximum_isRefused_J17(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
		mustExec(t, admin, "UPDATE lease SET fence = ?", uint64(maxFence-2))
		c := claimOf("ns/k")
		c.Block = 3
		if _, err := a.Claim(t.Context(), c); driver.ClassOf(err) != driver.ClassConfig {
			t.Errorf("a block past the maximum: %v", err)
		}
		c.Block = 2
		g := mustClaim(t, a, c)
		if g.Fence != maxFence-1 {
			t.Errorf("fence %d, want %d", g.Fence, maxFence-1)
		}
		mustRelease(t, a, "ns/k", g)
		if _, err := a.Claim(t.Context(), claimOf("ns/k")); driver.ClassOf(err) != driver.ClassConfig {
			t.Errorf("a fence past the maximum: %v", err)
		}
		mustExec(t, admin, "UPDATE floor SET fence = ?", uint64(maxFence))
		if _, err := a.Claim(t.Context(), claimOf("ns/new")); driver.ClassOf(err) != driver.ClassConfig {
			t.Errorf("a new row past the maximum: %v", err)
		}
	})
}

func TestClaim_withoutFloorRow_saysSo(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		mustExec(t, admin, "DELETE FROM floor")
		if _, err := a.Claim(t.Context(), claimOf("ns/k")); !errors.Is(err, errNoFloor) || driver.ClassOf(err) != driver.ClassConfig {
			t.Errorf("claim: %v", err)
		}
		if err := a.Prepare(t.Context(), "ns/k"); !errors.Is(err, errNoFloor) {
			t.Errorf("Prepare: %v", err)
		}
	})
}

// The contents of a table that was truncated or dropped are forgotten, but not
// how high the fences were: faults E12.
func TestClaim_fencesRise_overTruncateAndDrop_E12(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		c := claimOf("ns/k")
		c.Block = maxBlock
		last := mustClaim(t, a, c)
		for _, statements := range [][]string{
			{"TRUNCATE lease"},
			{"TRUNCATE lease", "UPDATE floor SET fence = 0"},
			{"DROP TABLE lease", "DROP TABLE floor", "DROP TABLE schema_version"},
		} {
			for _, statement := range statements {
				mustExec(t, admin, statement)
			}
			if len(statements) == 3 {
				_, err := a.Claim(t.Context(), c)
				var classified *driver.Error
				if !errors.As(err, &classified) || classified.Class != driver.ClassConfig || classified.Advice != adviceSchema {
					t.Errorf("claim without tables: %v", err)
				}
				if err := EnsureSchema(t.Context(), admin); err != nil {
					t.Fatal(err)
				}
			}
			next := mustClaim(t, a, c)
			if next.Fence < last.Fence+maxBlock {
				t.Errorf("after %v: fence %d, was %d + block", statements, next.Fence, last.Fence)
			}
			last = next
		}
	})
}

// A server clock that was set back keeps nothing shut that was released: NULL
// is free, not a time.
func TestClaim_releasedKey_whenTheClockWentBack(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		now, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		g := mustClaim(t, now, claimOf("ns/k"))
		mustRelease(t, now, "ns/k", g)
		back := open(t, d.DSN()+"?timestamp=UNIX_TIMESTAMP()-3600", WithTimeout(busyLimit))
		again := mustClaim(t, back, claimOf("ns/k"))
		if again.Fence <= g.Fence {
			t.Errorf("fence %d after %d", again.Fence, g.Fence)
		}
		var age int
		if err := admin.QueryRowContext(t.Context(), "SELECT TIMESTAMPDIFF(SECOND, acquired_at, UTC_TIMESTAMP()) FROM lease").Scan(&age); err != nil || age < 3500 {
			t.Fatalf("the clock of the second session was not back: %d s, %v", age, err)
		}
		mustRelease(t, back, "ns/k", again)
	})
}
