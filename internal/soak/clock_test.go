// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// TestClock_anHourBack sets the server's clock back by an hour under its users:
// what was released is granted at once, what is held stays refused until it is
// released, and fences rise, also those of rows that were swept away.
//
// The rows are what a clock leaves behind, so moving them an hour ahead, with
// the fences that come from it, is the same as moving the clock. Where
// libfaketime is installed the clock itself is moved as well.
func TestClock_anHourBack(t *testing.T) {
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			runClock(t, s, func() { moveRows(t, s) })
		})
	}
	if library := faketime(); library != "" {
		t.Run("MariaDB, libfaketime", func(t *testing.T) {
			clock := filepath.Join(t.TempDir(), "clock")
			set := func(offset string) {
				next := clock + ".next"
				if err := errors.Join(os.WriteFile(next, []byte(offset+"\n"), 0o600), os.Rename(next, clock)); err != nil {
					t.Fatal(err)
				}
			}
			set("+3600s")
			t.Setenv("LD_PRELOAD", library)
			t.Setenv("FAKETIME_TIMESTAMP_FILE", clock)
			t.Setenv("FAKETIME_NO_CACHE", "1")
			t.Setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
			server := stack.StartSQL(t, stack.MariaDB)
			t.Setenv("LD_PRELOAD", "") // for nobody else
			s := tiers.On(t, stack.SharedRedis(t), server)
			if ahead := s.Count(t, "SELECT TIMESTAMPDIFF(MINUTE, FROM_UNIXTIME(?), NOW())", time.Now().Unix()); ahead < 59 {
				t.Fatalf("the server's clock is %d minutes ahead, not 60", ahead)
			}
			runClock(t, s, func() { set("+0s") })
		})
	}
}

// faketime is where libfaketime is installed, if it is.
func faketime() string {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// moveRows moves what the clock has written an hour ahead.
func moveRows(t *testing.T, s *tiers.Tiers) {
	t.Helper()
	for {
		_, err := s.Admin.ExecContext(t.Context(), "UPDATE lease SET acquired_at = acquired_at + INTERVAL 1 HOUR,"+
			" expires_at = expires_at + INTERVAL 1 HOUR, fence = fence + 3600000000000 ORDER BY lock_key")
		if answer, ok := errors.AsType[*mysql.MySQLError](err); ok && (answer.Number == 1213 || answer.Number == 1205) {
			continue // chosen as a victim among the workers' statements: nothing was moved
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
}

func runClock(t *testing.T, s *tiers.Tiers, back func()) {
	t.Helper()
	const ttl, keys = 2 * time.Second, 20
	var lockers []*tier.Locker
	for range 2 {
		node := s.NodeWith(t, "")
		locker, err := tier.New(node.Filter, node.Authority, tier.WithNamespace("clock"), tier.WithTTL(ttl), tier.WithWait(15*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		lockers = append(lockers, locker)
		t.Cleanup(func() { closeLocker(t, locker) })
		noError(t, locker.Check(t.Context())) // not within the second of the first TryAcquire
	}
	holder, other := lockers[0], lockers[1]
	fences := newFences(func(string) uint64 { return 0 })
	pairFor := func(hold time.Duration, locker *tier.Locker, key string) {
		before := fences.before(key)
		lease, err := locker.Acquire(context.Background(), key)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			return
		}
		fences.granted(t, key, before, lease.Fence())
		time.Sleep(hold)
		if err := release(lease); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	pair := func(locker *tier.Locker, key string) { pairFor(0, locker, key) }
	for i := range keys {
		pair(holder, fmt.Sprintf("free-%d", i))
		pair(holder, fmt.Sprintf("swept-%d", i))
	}
	held, err := holder.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	// Of a process that died: nobody renews it.
	authority, err := mysqlauth.Open(s.Database.DSN(), mysqlauth.WithSweepInterval(0), mysqlauth.WithRetention(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = authority.Close(context.Background()) })
	dead, err := authority.Claim(t.Context(), driver.Claim{Key: "clock/dead", TTL: time.Minute, Holder: "dead", Block: 1})
	if err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for i := range 8 {
		running.Go(func() {
			for working.Err() == nil {
				pairFor(time.Millisecond, lockers[i%2], fmt.Sprintf("busy-%d", i%4)) // hand-offs alone would take the processors
			}
		})
	}

	back()
	stepped := time.Now()
	fences.read(t, s)
	refused := func(key string) {
		if lease, err := other.TryAcquire(t.Context(), key); !errors.Is(err, tier.ErrHeld) {
			t.Errorf("%s is held, and another got %v, %v", key, lease, err)
		}
	}
	refused("held")
	refused("dead")
	began := time.Now()
	for i := range keys {
		pair(other, fmt.Sprintf("free-%d", i))
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("what was released was granted after %v", took)
	}

	s.Exec(t, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 DAY WHERE lock_key LIKE 'clock/swept-%' AND token IS NULL")
	if n, err := authority.Sweep(t.Context()); err != nil || n < keys {
		t.Errorf("%d rows were swept, %v", n, err)
	}
	for i := range keys {
		pair(other, fmt.Sprintf("swept-%d", i))
	}

	// The holder's renewals go on, and give the lease its usual time again.
	for time.Since(stepped) < 2*ttl {
		refused("held")
		time.Sleep(50 * time.Millisecond)
	}
	if err := errors.Join(held.Err(), held.Verify(t.Context())); err != nil {
		t.Errorf("the holder: %v", err)
	}
	left := s.Count(t, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), expires_at) FROM lease WHERE lock_key = 'clock/held'")
	if left > 10 {
		t.Errorf("the lease of a holder who dies now blocks its key for %d s", left)
	}
	if err := release(held); err != nil {
		t.Errorf("release: %v", err)
	}
	pair(other, "held")

	refused("dead")
	if _, err := authority.ForceRelease(t.Context(), "clock/dead", "test", true); err != nil {
		t.Errorf("force: %v", err)
	}
	before := dead.Fence
	lease, err := other.Acquire(t.Context(), "dead")
	if err != nil {
		t.Fatal(err)
	}
	fences.granted(t, "dead", before, lease.Fence())
	if err := release(lease); err != nil {
		t.Errorf("release: %v", err)
	}
	stop()
	running.Wait()
	n, again := fences.count()
	t.Logf("%d keys, %d tenures after their first, %v after the step", n, again, time.Since(stepped).Round(time.Millisecond))
}

// read takes the fences of the rows for known: nobody who is granted one of
// these keys afterwards may get a lower one.
func (f *fences) read(t *testing.T, s *tiers.Tiers) {
	t.Helper()
	rows, err := s.Admin.QueryContext(t.Context(), "SELECT SUBSTR(lock_key, 7), fence FROM lease WHERE lock_key LIKE 'clock/%' AND token IS NULL")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		var fence uint64
		if err := rows.Scan(&key, &fence); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		f.last[key] = max(f.last[key], fence)
		f.mu.Unlock()
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}
