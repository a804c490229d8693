// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// age makes every row as if nobody had used it for two days.
const age = "UPDATE lease SET expires_at = expires_at - INTERVAL 2 DAY WHERE lock_key LIKE 'ns/%'"

func mustSweep(t *testing.T, a *Authority) int {
	t.Helper()
	n, err := a.Sweep(t.Context())
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	return n
}

func TestSweep_removesUnusedRows_andRaisesTheFloor(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		var keys []string
		for i := range 450 { // more than two transactions' worth
			keys = append(keys, fmt.Sprintf("ns/k%03d", i))
		}
		if err := a.Prepare(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		const far = uint64(1) << 62 // above what the time would give
		mustExec(t, admin, "UPDATE lease SET fence = ? WHERE lock_key = 'ns/k007'", far)
		if n := mustSweep(t, a); n != 0 {
			t.Errorf("%d rows that were just made were swept", n)
		}
		held, expired := mustClaim(t, a, claimOf("ns/held")), mustClaim(t, a, claimOf("ns/expired"))
		mustExec(t, admin, age+" AND lock_key <> 'ns/held' AND lock_key <> 'ns/k001'")
		if n := mustSweep(t, a); n != 449 {
			t.Errorf("%d rows were swept, want 449", n)
		}
		var left int
		if err := admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lease WHERE lock_key LIKE 'ns/%'").Scan(&left); err != nil || left != 3 {
			t.Errorf("%d rows are left, want 3, %v", left, err)
		}
		if row, err := a.Look(t.Context(), "ns/held"); err != nil || row.Token != held.Token {
			t.Errorf("the held row: %+v, %v", row, err)
		}
		// The expired one was released; it goes one retention later.
		if err := a.Release(t.Context(), releaseOf("ns/expired", expired)); lossReason(err) != driver.LossFreed {
			t.Errorf("release of the lease that expired two days ago: %v", err)
		}
		mustExec(t, admin, age+" AND lock_key = 'ns/expired'")
		if n := mustSweep(t, a); n != 1 {
			t.Errorf("%d rows were swept, want the expired one", n)
		}
		if g := mustClaim(t, a, claimOf("ns/k007")); g.Fence <= far {
			t.Errorf("fence %d came back below %d", g.Fence, far)
		}
		var floor uint64
		if err := admin.QueryRowContext(t.Context(), "SELECT fence FROM floor").Scan(&floor); err != nil || floor != far {
			t.Errorf("floor %d, want %d, %v", floor, far, err)
		}
	})
}

// Claims and sweeps of the same keys at once: the fence never goes back, and
// nobody is granted twice.
func TestSweep_concurrentClaims_fenceNeverGoesBack(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		const keys = 4
		admin := openAdmin(t, d)
		// Above what the time would give, so that only the floor keeps fences up.
		mustExec(t, admin, "UPDATE floor SET fence = ?", uint64(1)<<62)
		sweeping, stop := context.WithTimeout(t.Context(), 4*time.Second)
		defer stop()
		var wg sync.WaitGroup
		swept := 0
		sweeper := open(t, d.DSN(), WithTimeout(busyLimit))
		wg.Go(func() {
			for sweeping.Err() == nil {
				n, err := sweeper.Sweep(sweeping)
				if err != nil && driver.ClassOf(err) != driver.ClassContention && sweeping.Err() == nil {
					t.Errorf("Sweep: %v", err)
				}
				swept += n
			}
		})
		var mu sync.Mutex
		last := make(map[string]uint64)
		grants := 0
		for range 2 {
			a := open(t, d.DSN(), WithTimeout(busyLimit))
			for i := range 2 * keys {
				wg.Go(func() {
					key := fmt.Sprintf("ns/k%d", i%keys)
					for sweeping.Err() == nil {
						g, err := a.Claim(t.Context(), claimOf(key))
						if err != nil {
							if driver.ClassOf(err) != driver.ClassContention {
								t.Errorf("Claim: %v", err)
								return
							}
							time.Sleep(5 * time.Millisecond)
							continue
						}
						mu.Lock()
						if g.Fence <= last[key] {
							t.Errorf("%s: fence %d after %d", key, g.Fence, last[key])
						}
						last[key] = g.Fence
						grants++
						mu.Unlock()
						// Freed and aged at once, as rows are that were not used for
						// long: the sweeper takes them while others claim them.
						mustExec(t, admin, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY"+
							" WHERE lock_key = ? AND token = ?", []byte(key), g.Token[:])
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
		t.Logf("%d grants, %d rows swept", grants, swept)
		if grants < 20 || swept < 2 {
			t.Errorf("the test did not do what it is for: %d grants, %d rows swept", grants, swept)
		}
	})
}

// A locked row of a small table does not stop the sweeper, and the floor comes
// with the rows: without it they stay.
func TestSweep_neverWaits_andNeedsTheFloor(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		if err := a.Prepare(t.Context(), "ns/a", "ns/b", "ns/c"); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, age)
		mustExec(t, admin, "DELETE FROM floor")
		if _, err := a.Sweep(t.Context()); !errors.Is(err, errNoFloor) && !isBusy(err) {
			t.Errorf("Sweep without a floor: %v", err)
		}
		var rows int
		if err := admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lease WHERE lock_key LIKE 'ns/%'").Scan(&rows); err != nil || rows != 3 {
			t.Errorf("%d rows are left, want 3, %v", rows, err)
		}
		mustExec(t, admin, "INSERT INTO floor VALUES (1, 0)")
		// The lease of the sweep that failed is being given back.
		unlock := lockRow(t, admin, "ns/b")
		var n int
		within(t, 5*time.Second, "the sweeper's lease", func() bool {
			began := time.Now()
			var err error
			n, err = a.Sweep(t.Context())
			if took := time.Since(began); took > 900*time.Millisecond {
				t.Errorf("the sweeper waited: %v, %v", took, err)
			}
			return err == nil
		})
		if n != 2 {
			t.Errorf("%d rows were swept, want 2", n)
		}
		unlock()
	})
}

func TestSweep_oneAtATime(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, other := open(t, d.DSN(), WithTimeout(busyLimit)), open(t, d.DSN(), WithTimeout(busyLimit))
		mustExec(t, openAdmin(t, d), "UPDATE floor SET fence = fence")
		g, err := other.claim(t.Context(), driver.Claim{Key: sweepKey, TTL: time.Minute, Holder: "sweeper", Block: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Sweep(t.Context()); driver.ClassOf(err) != driver.ClassContention {
			t.Errorf("a second sweep: %v", err)
		}
		other.giveBack(driver.Release{Key: sweepKey, Token: g.Token, Until: g.Until})
	})
}

func TestSweep_inTheBackground(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit), WithSweepInterval(100*time.Millisecond)), openAdmin(t, d)
		if err := a.Prepare(t.Context(), "ns/a", "ns/b"); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, age)
		within(t, 10*time.Second, "the rows are gone", func() bool {
			var rows int
			err := admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lease WHERE lock_key LIKE 'ns/%'").Scan(&rows)
			return err == nil && rows == 0
		})
	})
}

// A claim that makes a row while the sweeper's transaction lets go of it never
// starts below the old fence: it reads the floor under a lock. Either of the
// two may be rolled back.
func TestInsert_besideTheSweeper_startsAboveTheOldFence(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		const old = uint64(1) << 62 // above what the time would give
		mustExec(t, admin, "INSERT INTO lease VALUES ('ns/k', NULL, ?, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", old)
		sweeps, inserts := prepared(t, admin), prepared(t, admin)
		mustExec(t, sweeps, "START TRANSACTION")
		mustExec(t, sweeps, a.tables.remove(1), []byte("ns/k"))
		done := make(chan error, 1)
		token := driver.NewToken()
		go func() {
			_, err := inserts.ExecContext(context.Background(), a.tables.insert(1),
				token[:], 1, []byte{}, time.Minute.Microseconds(), []byte("ns/k"), int64(3_000_000_000_000_000), uint64(maxFence))
			done <- err
		}()
		time.Sleep(300 * time.Millisecond) // it waits for the row
		_, err := sweeps.ExecContext(t.Context(), a.tables.raiseFloor(), old)
		if err == nil {
			mustExec(t, sweeps, "COMMIT")
		} else {
			mustExec(t, sweeps, "ROLLBACK")
		}
		t.Logf("sweeper: %v, claim: %v", err, <-done)
		var fence uint64
		err = admin.QueryRowContext(t.Context(), "SELECT fence FROM lease WHERE lock_key = 'ns/k'").Scan(&fence)
		if err == nil && fence < old || err != nil && !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("fence %d came back below %d, %v", fence, old, err)
		}
	})
}
