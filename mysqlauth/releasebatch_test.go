// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// releaseTogether queues releases so that they share a statement.
func releaseTogether(t *testing.T, a *Authority, rs ...driver.Release) []error {
	t.Helper()
	calls := make([]*releaseCall, len(rs))
	for i, r := range rs {
		calls[i] = a.owing(r)
	}
	a.releases.add(calls...)
	errs := make([]error, len(calls))
	for i, call := range calls {
		select {
		case errs[i] = <-call.answer:
		case <-time.After(20 * time.Second):
			t.Fatalf("release %d of %d has no answer", i, len(calls))
		}
	}
	return errs
}

// In a batch each learns its own fate, also when the row was taken again
// before anybody could look.
func TestRelease_batch_eachHasItsOwnAnswer_C3(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a, other := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit)), open(t, d.DSN(), WithTimeout(busyLimit))
		names := []string{"ns/free", "ns/retaken", "ns/lost", "ns/gone", "ns/expired", "ns/locked", "ns/freed"}
		var claims []driver.Claim
		for _, name := range names {
			claims = append(claims, claimOf(name))
		}
		grants, errs := claimTogether(t, a, claims...)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) WHERE lock_key IN ('ns/lost', 'ns/expired')")
		mustExec(t, admin, "UPDATE lease SET token = NULL WHERE lock_key = 'ns/freed'")
		mustExec(t, admin, "DELETE FROM lease WHERE lock_key = 'ns/gone'")
		lost := mustClaim(t, other, claimOf("ns/lost"))
		unlock := lockRow(t, admin, "ns/locked")
		// Between the release and the look another takes a key, and writes under
		// its guard.
		p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
			if r.Has("SET l.token = NULL") {
				p.OnReply(nil)
				if _, err := other.Claim(context.Background(), claimOf("ns/retaken")); err != nil {
					t.Errorf("claim of a key that was just released: %v", err)
				}
				_, _ = admin.Exec("UPDATE lease SET guard = guard + 1 WHERE lock_key = 'ns/retaken'")
				time.AfterFunc(500*time.Millisecond, unlock)
			}
			return stack.Pass
		})
		var rs []driver.Release
		for i, name := range names {
			rs = append(rs, releaseOf(name, grants[i]))
		}
		errs = releaseTogether(t, a, rs...)
		for i, want := range []driver.LossReason{0, 0, driver.LossTaken, driver.LossFreed, driver.LossExpired, 0, driver.LossFreed} {
			if got := lossReason(errs[i]); got != want || want == 0 && errs[i] != nil {
				t.Errorf("%s: %v, want %v", names[i], errs[i], want)
			}
		}
		if !isHeld(t, admin, "ns/retaken") || !isHeld(t, admin, "ns/lost") || isHeld(t, admin, "ns/locked") || isHeld(t, admin, "ns/free") {
			t.Error("the rows are not as the answers say")
		}
		mustRelease(t, other, "ns/lost", lost)
	})
}

// The next holder of a row that was just freed has left it again before anybody
// could look: that is no loss, and hides no other.
func TestRelease_batch_takenAndLeftMeanwhile_C3(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a, other := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit)), open(t, d.DSN(), WithTimeout(busyLimit))
		for name, test := range map[string]struct {
			lost string // how long ago the batch's lost lease was taken
			want driver.LossReason
		}{
			"lost long ago":            {"1 MINUTE", driver.LossTaken},
			"lost in that same moment": {"-5 SECOND", 0}, // nobody can tell
		} {
			names := []string{"ns/free", "ns/left", "ns/lost", "ns/expired", "ns/locked"}
			mustExec(t, admin, "DELETE FROM lease")
			var claims []driver.Claim
			for _, name := range names {
				claims = append(claims, claimOf(name))
			}
			grants, errs := claimTogether(t, a, claims...)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			mustExec(t, admin, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) WHERE lock_key IN ('ns/lost', 'ns/expired')")
			mustClaim(t, other, claimOf("ns/lost"))
			mustExec(t, admin, "UPDATE lease SET acquired_at = acquired_at - INTERVAL "+test.lost+" WHERE lock_key = 'ns/lost'")
			unlock := lockRow(t, admin, "ns/locked")
			p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
				if r.Has("SET l.token = NULL") {
					p.OnReply(nil)
					if g, err := other.Claim(context.Background(), claimOf("ns/left")); err != nil {
						t.Errorf("claim of a key that was just released: %v", err)
					} else if err := other.Release(context.Background(), releaseOf("ns/left", g)); err != nil {
						t.Errorf("release of it: %v", err)
					}
					time.AfterFunc(300*time.Millisecond, unlock)
				}
				return stack.Pass
			})
			var rs []driver.Release
			for i, name := range names {
				rs = append(rs, releaseOf(name, grants[i]))
			}
			errs = releaseTogether(t, a, rs...)
			for i, want := range []driver.LossReason{0, 0, test.want, driver.LossExpired, 0} {
				if got := lossReason(errs[i]); got != want || want == 0 && errs[i] != nil {
					t.Errorf("%s: %s: %v, want %v", name, names[i], errs[i], want)
				}
			}
			if !isHeld(t, admin, "ns/lost") || isHeld(t, admin, "ns/locked") || isHeld(t, admin, "ns/free") {
				t.Errorf("%s: the rows are not as the answers say", name)
			}
		}
	})
}
