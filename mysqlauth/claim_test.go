// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// The table has three rows on purpose: MariaDB scans a table that small unless
// FORCE INDEX keeps it from that, and would wait for the locked row.
func TestClaim_neverWaits_lockedRow(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN(), WithTimeout(busyLimit)), openAdmin(t, d)
		if err := a.Prepare(t.Context(), "ns/a", "ns/b", "ns/c"); err != nil {
			t.Fatal(err)
		}
		lockRow(t, admin, "ns/b")
		began := time.Now()
		_, errs := claimTogether(t, a, claimOf("ns/a"), claimOf("ns/b"), claimOf("ns/c"))
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("a claim waited for a locked row: %v", took)
		}
		if errs[0] != nil || !isBusy(errs[1]) || errs[2] != nil {
			t.Errorf("errors %v; want nil, busy, nil", errs)
		}
		if n := a.Stats().Retried; n != 0 {
			t.Errorf("%d statements were repeated: one waited for its lock", n)
		}
	})
}

func TestClaim_lateRefusesItself(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, p := openAdmin(t, d), proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		if err := a.Prepare(t.Context(), "ns/old"); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"ns/old", "ns/new"} {
			held, arrives := make(chan struct{}), make(chan struct{})
			once := sync.OnceFunc(func() { close(held) })
			part := "SET l.fence = "
			if key == "ns/new" {
				part = "INSERT INTO `lease`"
			}
			p.OnRequest(func(r stack.Request) stack.Action {
				if r.Has(part) {
					once()
					return stack.HoldUntil(arrives)
				}
				return stack.Pass
			})
			_, err := a.Claim(t.Context(), claimOf(key))
			if driver.ClassOf(err) != driver.ClassUnknown {
				t.Errorf("claim of %s: %v", key, err)
			}
			<-held
			p.OnRequest(nil)
			time.Sleep(300 * time.Millisecond) // not_after has passed by now
			close(arrives)
			for range 20 {
				if isHeld(t, admin, key) {
					t.Fatalf("a claim of %s that came late was executed", key)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	})
}

// Whichever reply is lost, and however, the caller learns that nothing is
// known, and the key is free soon: faults B2, B6, J7.
func TestClaim_lostReply_isSettled(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, p := openAdmin(t, d), proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		for i, part := range []string{"SET l.fence = ", "FROM `lease` FORCE INDEX (PRIMARY) WHERE lock_key IN", "INSERT INTO `lease`"} {
			for j, action := range []stack.Action{stack.Swallow, stack.HangUp} {
				key := fmt.Sprintf("ns/k%d%d", i, j)
				nth := 1
				if i == 1 {
					nth = 2 // the first one finds no row
				}
				if i == 0 {
					if err := a.Prepare(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
				hit := p.LoseReply(nth, func(r stack.Request) bool { return r.Has(part) && (i != 1 || strings.HasPrefix(r.Text, "SELECT")) }, action)
				began := time.Now()
				_, err := a.Claim(t.Context(), claimOf(key))
				if driver.ClassOf(err) != driver.ClassUnknown {
					t.Fatalf("%s: %v", part, err)
				}
				if took := time.Since(began); took > 1500*time.Millisecond {
					t.Errorf("the claim took %v", took)
				}
				<-hit
				within(t, 3*time.Second, key+" is free", func() bool { return !isHeld(t, admin, key) })
			}
		}
		within(t, 5*time.Second, "six grants were undone", func() bool { return a.Stats().Settled == 6 })
	})
}

func TestClaim_abandonedInFlight_isGivenBack_B1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, p := openAdmin(t, d), proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
		executed, replies := make(chan struct{}), make(chan struct{})
		p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
			if r.Has("SET l.fence = ") {
				close(executed)
				return stack.HoldUntil(replies)
			}
			return stack.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := a.Claim(ctx, claimOf("ns/k"))
			left <- err
		}()
		<-executed
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that left got %v", err)
		}
		p.OnReply(nil)
		close(replies)
		within(t, 2*time.Second, "the key is free", func() bool { return !isHeld(t, admin, "ns/k") })
		mustClaim(t, a, claimOf("ns/k"))
	})
}

func TestClaim_abandonedInQueue_isNotSent(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		mustClaim(t, a, claimOf("ns/first"))
		sent, goes := make(chan struct{}), make(chan struct{})
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Holds([]byte("ns/left")) {
				t.Error("a claim whose caller had left was sent")
			}
			if r.Holds([]byte("ns/front")) && r.Has("SET l.fence") {
				close(sent)
				return stack.HoldUntil(goes)
			}
			return stack.Pass
		})
		done := make(chan error)
		go func() {
			_, err := a.Claim(t.Context(), claimOf("ns/front"))
			done <- err
		}()
		<-sent
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := a.Claim(ctx, claimOf("ns/left")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller that left got %v", err)
		}
		close(goes)
		if err := <-done; err != nil {
			t.Error(err)
		}
		mustClaim(t, a, claimOf("ns/after"))
	})
}

// 200 claims of a key that nobody has ever had, from two processes' worth of
// authorities: one winner each time, and no deadlock that anybody sees.
func TestClaim_coldStart_oneWinner_J3(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		var as []*Authority
		for range 4 {
			as = append(as, open(t, d.DSN(), WithTimeout(busyLimit)))
		}
		for round := range 10 {
			key := fmt.Sprintf("ns/cold%d", round)
			var mu sync.Mutex
			var wg sync.WaitGroup
			won := 0
			for i := range 200 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					_, err := as[i%len(as)].Claim(ctx, claimOf(key))
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						won++
					} else if driver.ClassOf(err) != driver.ClassContention {
						t.Errorf("loser got %v", err)
					}
				})
			}
			wg.Wait()
			if won != 1 {
				t.Errorf("%d winners of %s", won, key)
			}
		}
	})
}

// Keys are bytes: faults J10.
func TestClaim_keysThatCollationsMerge_J10(t *testing.T) {
	keys := []string{
		"pay", "PAY", "páy", "pay ", " pay", "pay\t", "\u00e9", "e\u0301", "straße", "strasse",
		"\xff\xfe", "\xff", "a\x00", "a", "a\x00\x00", "'", "\\", "\\'", "?", "`", "%", "_",
		strings.Repeat("\xe0", 300), strings.Repeat("x", maxKey),
	}
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		plain, err := sql.Open("mysql", d.DSN()) // does not interpolate
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close() //nolint:errcheck // nothing is in it
		prepares, err := New(plain, WithTimeout(busyLimit), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		defer prepares.Close(context.Background()) //nolint:errcheck // all is released
		interpolates := open(t, d.DSN(), WithTimeout(busyLimit))
		for _, pair := range [][2]*Authority{{prepares, interpolates}, {interpolates, prepares}} {
			var claims []driver.Claim
			for _, key := range keys {
				claims = append(claims, claimOf(key))
			}
			grants, errs := claimTogether(t, pair[0], claims...)
			for i, err := range errs {
				if err != nil {
					t.Fatalf("claim of %q: %v", keys[i], err)
				}
			}
			_, errs = claimTogether(t, pair[1], claims...)
			for i, err := range errs {
				if driver.ClassOf(err) != driver.ClassContention {
					t.Errorf("second claim of %q: %v", keys[i], err)
				}
			}
			for i, key := range keys {
				row, err := pair[1].Look(t.Context(), key)
				if err != nil || row.Token != grants[i].Token {
					t.Errorf("Look(%q) = %+v, %v", key, row, err)
				}
				mustRelease(t, pair[1], key, grants[i])
			}
		}
	})
}

// Values are refused before a byte is sent: faults J11.
func TestClaim_badValues_beforeIO_J11(t *testing.T) {
	a := open(t, "user:secret@tcp(127.0.0.1:1)/db") // nothing listens there
	for name, c := range map[string]driver.Claim{
		"empty":        {TTL: time.Second, Block: 1},
		"long":         {Key: strings.Repeat("k", maxKey+1), TTL: time.Second, Block: 1},
		"64 KiB":       {Key: strings.Repeat("k", 64<<10), TTL: time.Second, Block: 1},
		"reserved":     {Key: sweepKey, TTL: time.Second, Block: 1},
		"no time":      {Key: "ns/k", Block: 1},
		"negative":     {Key: "ns/k", TTL: -time.Second, Block: 1},
		"no block":     {Key: "ns/k", TTL: time.Second},
		"large block":  {Key: "ns/k", TTL: time.Second, Block: 1<<16 + 1},
		"large holder": {Key: "ns/k", TTL: time.Second, Block: 1, Holder: strings.Repeat("h", 129)},
	} {
		_, err := a.Claim(t.Context(), c)
		if !errors.Is(err, ErrKey) && !errors.Is(err, ErrValue) || driver.ClassOf(err) != driver.ClassConfig {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := strings.Repeat("k", maxKey+1)
	if _, err := a.Look(t.Context(), long); !errors.Is(err, ErrKey) {
		t.Errorf("Look: %v", err)
	}
	if err := a.Release(t.Context(), driver.Release{Key: long}); !errors.Is(err, ErrKey) {
		t.Errorf("Release: %v", err)
	}
	got := a.Renew(t.Context(), []driver.Renewal{{Key: long, TTL: time.Second}, {Key: "ns/k"}})
	if !errors.Is(got[0].Err, ErrKey) || !errors.Is(got[1].Err, ErrValue) {
		t.Errorf("Renew: %v", got)
	}
	if err := a.Prepare(t.Context(), "ns/k", long); !errors.Is(err, ErrKey) {
		t.Errorf("Prepare: %v", err)
	}
}

// A row that no statement can be done with fails alone.
func TestClaim_oneBadRow_failsAlone(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		err := d.Exec(t.Context(), "CREATE TRIGGER poison BEFORE UPDATE ON lease FOR EACH ROW "+
			"IF NEW.lock_key = 'ns/bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poison'; END IF")
		if err != nil {
			t.Fatal(err)
		}
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		var claims []driver.Claim
		for i := range 20 {
			claims = append(claims, claimOf(fmt.Sprintf("ns/k%02d", i)))
		}
		claims[13].Key = "ns/bad"
		keys := make([]string, len(claims))
		for i, c := range claims {
			keys[i] = c.Key
		}
		if err := a.Prepare(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		grants, errs := claimTogether(t, a, claims...)
		var rs []driver.Renewal
		for i, err := range errs {
			if bad := claims[i].Key == "ns/bad"; bad != (err != nil) {
				t.Errorf("claim of %s: %v", claims[i].Key, err)
			}
			rs = append(rs, driver.Renewal{Key: claims[i].Key, Token: grants[i].Token, TTL: 10 * time.Second, Until: time.Now().Add(5 * time.Second)})
		}
		// A lease on the bad row, so that its renewal reaches it.
		mustExec(t, openAdmin(t, d), "DROP TRIGGER poison")
		bad := mustClaim(t, a, claimOf("ns/bad"))
		rs[13].Token = bad.Token
		err = d.Exec(t.Context(), "CREATE TRIGGER poison BEFORE UPDATE ON lease FOR EACH ROW "+
			"IF NEW.lock_key = 'ns/bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poison'; END IF")
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range a.Renew(t.Context(), rs) {
			if bad := rs[i].Key == "ns/bad"; bad != (got.Err != nil) {
				t.Errorf("renewal of %s: %v", rs[i].Key, got.Err)
			}
		}
		mustExec(t, openAdmin(t, d), "DROP TRIGGER poison") // or the settler never ends
	})
}

func TestSortedKeys_bytes(t *testing.T) {
	keys := sortedKeys([]string{"b", "a\xff", "a", "B"})
	for i := 1; i < len(keys); i++ {
		if bytes.Compare([]byte(keys[i-1]), []byte(keys[i])) >= 0 {
			t.Errorf("%q is not in the order of its bytes", keys)
		}
	}
}
