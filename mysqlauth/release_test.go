// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestRelease_deadContext_stillReleases_B5(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		g := mustClaim(t, a, claimOf("ns/k"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Release(ctx, releaseOf("ns/k", g)); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Release: %v", err)
		}
		within(t, 2*time.Second, "the key is free", func() bool { return !isHeld(t, admin, "ns/k") })
	})
}

// A release whose reply was lost is repeated; "not ours" then means that the
// first one did it: faults A6, C1.
func TestRelease_lostReply_isNoLoss_C1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a, other := open(t, d.DSNAt(p.Addr())), open(t, d.DSN(), WithTimeout(busyLimit))
		for i, action := range []stack.Action{stack.HangUp, stack.Swallow} {
			for _, taken := range []bool{false, true} {
				key := fmt.Sprintf("ns/k%d%v", i, taken)
				g := mustClaim(t, a, claimOf(key))
				hit := p.LoseReply(1, stack.Having("SET l.token = NULL"), action)
				done := make(chan error)
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					defer cancel()
					done <- a.Release(ctx, releaseOf(key, g))
				}()
				<-hit
				var next driver.Grant
				if taken {
					next = mustClaim(t, other, claimOf(key))
				}
				if err := <-done; err != nil {
					t.Errorf("Release: %v", err)
				}
				if taken {
					mustRelease(t, other, key, next) // still the successor's
				}
			}
		}
	})
}

func TestRelease_serverAway_isRepeatedBehind_C7(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, p := openAdmin(t, d), proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		c := claimOf("ns/k")
		c.TTL = time.Minute
		g := mustClaim(t, a, c)
		p.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := a.Release(ctx, releaseOf("ns/k", g)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v", err)
		}
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
		within(t, 3*time.Second, "the key is free", func() bool { return !isHeld(t, admin, "ns/k") })
	})
}

// A release of a row that a transaction has waits alone, and others' releases
// pass it.
func TestRelease_lockedRow_waitsAlone(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		locked := mustClaim(t, a, claimOf("ns/locked"))
		unlock := lockRow(t, admin, "ns/locked")
		done := make(chan error, 1)
		go func() { done <- a.Release(context.Background(), releaseOf("ns/locked", locked)) }()
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		for i := range 5 {
			key := fmt.Sprintf("ns/k%d", i)
			mustRelease(t, a, key, mustClaim(t, a, claimOf(key)))
		}
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("five leases of other keys took %v", took)
		}
		select {
		case err := <-done:
			t.Fatalf("released under a transaction: %v", err)
		case <-time.After(1500 * time.Millisecond): // past a lock's timeout
		}
		unlock()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Release: %v", err)
			}
		case <-time.After(3 * time.Second):
			t.Error("the release did not come after the transaction")
		}
		if isHeld(t, admin, "ns/locked") {
			t.Error("the row is still held")
		}
	})
}

// A guarded transaction has the row for a moment: the lane comes again, and
// nobody waits with a session of his own.
func TestRelease_lockedForAMoment_waitsNot(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		for i, minHold := range []time.Duration{0, time.Hour} {
			key := fmt.Sprintf("ns/k%d", i)
			r := releaseOf(key, mustClaim(t, a, claimOf(key)))
			r.MinHold = minHold
			unlock := lockRow(t, admin, key)
			var waited atomic.Bool
			p.OnRequest(func(r stack.Request) stack.Action {
				if r.Has("FORCE INDEX (PRIMARY) SET") {
					waited.Store(true)
				}
				return stack.Pass
			})
			p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
				if r.Has("SELECT lock_key, token, fence") { // it was found locked
					unlock()
				}
				return stack.Pass
			})
			if err := a.Release(t.Context(), r); err != nil {
				t.Errorf("Release: %v", err)
			}
			p.OnRequest(nil)
			p.OnReply(nil)
			if waited.Load() {
				t.Error("a statement waited for the row")
			}
		}
	})
}

// Many rows that stay locked leave a session to others, and the one that is
// unlocked is freed before its turn to be waited for comes.
func TestRelease_manyLockedRows_leaveASession(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		const rows = 30
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		waiting := countWaiting(p, a.tables.releaseWaiting())
		admin.SetMaxOpenConns(2 * rows)
		claims := make([]driver.Claim, rows)
		for i := range claims {
			claims[i] = claimOf(fmt.Sprintf("ns/k%02d", i))
			claims[i].TTL = time.Minute
		}
		grants, errs := claimTogether(t, a, claims...)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		unlock, answers := make([]func(), rows), make([]chan error, rows)
		for i, c := range claims {
			unlock[i], answers[i] = lockRow(t, admin, c.Key), make(chan error, 1)
		}
		for i, c := range claims {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				answers[i] <- a.Release(ctx, releaseOf(c.Key, grants[i]))
			}()
		}
		within(t, 10*time.Second, "rows are waited for", func() bool { return waiting() == 2 })
		for i := range 3 {
			unlock[i]()
			select {
			case err := <-answers[i]:
				if err != nil {
					t.Errorf("Release: %v", err)
				}
			case <-time.After(3 * time.Second): // 30 rows of a second each, 2 at a time
				t.Fatal("a row that nobody has locked any more is not freed")
			}
			if err := a.Ping(t.Context()); err != nil {
				t.Errorf("Ping: %v", err)
			}
		}
		for i := range claims {
			unlock[i]()
		}
		for i := 3; i < rows; i++ {
			if err := <-answers[i]; err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		if most := waiting(); most != 2 {
			t.Errorf("%d sessions of 3 waited for rows at a time, want 2", most)
		}
	})
}

func TestRelease_expired_isLost_C2(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		g := mustClaim(t, a, claimOf("ns/k"))
		mustExec(t, admin, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6)")
		if err := a.Release(t.Context(), releaseOf("ns/k", g)); lossReason(err) != driver.LossExpired {
			t.Errorf("Release after expiry: %v", err)
		}
		if got := renewOne(t, a, "ns/k", g, time.Second); lossReason(got.Err) != driver.LossExpired { // faults J16
			t.Errorf("Renew after expiry: %v", got.Err)
		}
		next := mustClaim(t, a, claimOf("ns/k"))
		err := a.Release(t.Context(), releaseOf("ns/k", g))
		var loss *driver.Loss
		if !errors.As(err, &loss) || loss.Reason != driver.LossTaken || loss.Fence != next.Fence {
			t.Errorf("Release after a takeover: %v", err)
		}
		mustExec(t, admin, "DELETE FROM lease")
		if err := a.Release(t.Context(), releaseOf("ns/k", next)); lossReason(err) != driver.LossFreed {
			t.Errorf("Release of a row that is gone: %v", err)
		}
	})
}

// A release leaves the date of now: one in the past would let the sweeper take
// a row that was just used.
func TestRelease_dateIsNow(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
		var age float64
		err := admin.QueryRowContext(t.Context(),
			"SELECT TIMESTAMPDIFF(MICROSECOND, expires_at, UTC_TIMESTAMP(6)) / 1e6 FROM lease WHERE token IS NULL").Scan(&age)
		if err != nil || age < 0 || age > 60 {
			t.Errorf("the row's date is %v s ago, %v", age, err)
		}
	})
}

// A lease that was given away before the answer came is given back.
func TestRelease_afterLostRenewalReply_A6(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		g := mustClaim(t, a, claimOf("ns/k"))
		hit := p.LoseReply(1, stack.Having("GREATEST(l.expires_at"), stack.HangUp)
		if got := renewOne(t, a, "ns/k", g, 10*time.Second); driver.ClassOf(got.Err) != driver.ClassUnknown {
			t.Errorf("renewal without a reply: %v", got.Err)
		}
		<-hit
		mustRelease(t, a, "ns/k", g)
	})
}

// MinHold: the row stays held under a token that nobody knows, until that long
// after the grant, and frees itself; when that has passed, at once.
func TestRelease_minHold(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		for i, fault := range []bool{false, true} {
			key := fmt.Sprintf("ns/k%d", i)
			g := mustClaim(t, a, claimOf(key))
			r := releaseOf(key, g)
			r.MinHold = time.Hour
			if fault { // a reply that was lost makes the second attempt find the kept row
				p.LoseReply(1, stack.Having("l.token = IF("), stack.HangUp)
			}
			if err := a.Release(t.Context(), r); err != nil {
				t.Errorf("Release: %v", err)
			}
			row, err := a.Look(t.Context(), key)
			if err != nil || !row.Held || row.Token == g.Token || row.Left > time.Hour || row.Left < 50*time.Minute {
				t.Errorf("after a release with MinHold: %+v, %v", row, err)
			}
			if got := renewOne(t, a, key, g, time.Minute); lossReason(got.Err) != driver.LossTaken {
				t.Errorf("renewal after it: %v", got.Err)
			}
		}
		g := mustClaim(t, a, claimOf("ns/long"))
		mustExec(t, admin, "UPDATE lease SET acquired_at = acquired_at - INTERVAL 1 DAY WHERE lock_key = 'ns/long'")
		r := releaseOf("ns/long", g)
		r.MinHold = time.Hour
		if err := a.Release(t.Context(), r); err != nil || isHeld(t, admin, "ns/long") {
			t.Errorf("release after MinHold has passed: %v", err)
		}
		var free bool
		if err := admin.QueryRowContext(t.Context(), "SELECT token IS NULL FROM lease WHERE lock_key = 'ns/long'").Scan(&free); err != nil || !free {
			t.Errorf("the row is not free, %v", err)
		}
		// The same behind a transaction.
		g = mustClaim(t, a, claimOf("ns/locked"))
		unlock := lockRow(t, admin, "ns/locked")
		time.AfterFunc(300*time.Millisecond, unlock)
		r = releaseOf("ns/locked", g)
		r.MinHold = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := a.Release(ctx, r); err != nil {
			t.Errorf("Release of a locked row: %v", err)
		}
		if row, err := a.Look(t.Context(), "ns/locked"); err != nil || !row.Held || row.Token == g.Token || row.Left < 50*time.Minute {
			t.Errorf("after a release of a locked row with MinHold: %+v, %v", row, err)
		}
		if err := a.Release(t.Context(), driver.Release{Key: "ns/k", MinHold: -1}); !errors.Is(err, ErrValue) {
			t.Errorf("Release with a negative MinHold: %v", err)
		}
	})
}

// An answer that nobody listed proves nothing: the rows may have been freed.
func TestRelease_unlistedError_isNoLoss_C1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		grants, errs := claimTogether(t, a, claimOf("ns/a"), claimOf("ns/b"))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		p.LoseReply(1, stack.Having("SET l.token = NULL"), stack.SQLError(1105, "injected"))
		errs = releaseTogether(t, a, releaseOf("ns/a", grants[0]), releaseOf("ns/b", grants[1]))
		if err := errors.Join(errs...); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

// A row that cannot be released does not keep the others of its batch.
func TestRelease_oneBadRow_failsAlone(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		var claims []driver.Claim
		for i := range 20 {
			claims = append(claims, claimOf(fmt.Sprintf("ns/k%02d", i)))
		}
		grants, errs := claimTogether(t, a, claims...)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, "CREATE TRIGGER poison BEFORE UPDATE ON lease FOR EACH ROW "+
			"IF NEW.lock_key = 'ns/k07' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poison'; END IF")
		calls := make([]*releaseCall, len(claims))
		for i, c := range claims {
			r := releaseOf(c.Key, grants[i])
			calls[i] = a.owing(r)
		}
		sizes := make(chan int, 1000)
		key := regexp.MustCompile(`ns/k\d\d`)
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("SET l.token = NULL") {
				found := key.FindAllString(r.Text, -1)
				slices.Sort(found)
				sizes <- len(slices.Compact(found))
			}
			return stack.Pass
		})
		a.releases.add(calls...)
		within(t, 5*time.Second, "the others are free", func() bool {
			var held int
			err := admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lease WHERE token IS NOT NULL").Scan(&held)
			return err == nil && held == 1
		})
		mustExec(t, admin, "DROP TRIGGER poison")
		within(t, 5*time.Second, "the last is free", func() bool { return !isHeld(t, admin, "ns/k07") })
		for i, call := range calls {
			if err := <-call.answer; err != nil {
				t.Errorf("release %d: %v", i, err)
			}
		}
		if got := [3]int{<-sizes, <-sizes, <-sizes}; got != [3]int{20, 10, 10} {
			t.Errorf("statements released %v keys, want 20 and then the halves", got)
		}
	})
}
