// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the workers' own pool
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
)

func init() { roles["forced"] = runForced }

const (
	forcedKeys = 3
	forcedTTL  = 900 * time.Millisecond
	// forcedIdle is more than what is left of a lease and a poll, and much less
	// than forcedPatience, after which a waiter who was not woken asks anew.
	forcedIdle     = 3 * time.Second
	forcedPatience = 10 * time.Second
)

func forcedKey(i int) string { return fmt.Sprintf("forced-%d", i%forcedKeys) }

// An operator takes leases away, without now, from four processes that work: who
// had one learns before the next is granted it, fences rise, guarded writes are in
// their order, and who waits goes on when the lease has run out.
func TestForceRelease_underLoad_P1_P2(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		lasting := 3 * time.Second
		if soak {
			lasting = 30 * time.Second
		}
		createForcedTables(t, s)
		heard := newSpans()
		var nodes []*process
		for i := range 4 {
			nodes = append(nodes, startProcess(t, "forced", nodeSettings(s, i, map[string]string{"seed": "1"}), heard.hear))
		}
		forced := operate(t, s, lasting)
		for _, n := range nodes {
			if err := n.end(); err != nil {
				t.Errorf("a process ended with %v", err)
			}
		}
		heard.check(t)
		heard.checkIdle(t, forcedIdle)
		checkForced(t, s)
		if forced < 3 || heard.said["lost"] < 3 || heard.said["span"] < 20 {
			t.Errorf("%d leases taken away: too little happened", forced)
		}
	})
}

// createForcedTables has the server note every grant, and whether the lease before
// it still stood, in the statement that makes it and under the lock of its row.
// What an operator writes leaves acquired_at as it is.
func createForcedTables(t *testing.T, s *tiers.Tiers) {
	t.Helper()
	for _, statement := range []string{
		"CREATE TABLE written (id BIGINT AUTO_INCREMENT PRIMARY KEY, lock_key VARBINARY(320) NOT NULL, fence BIGINT UNSIGNED NOT NULL)",
		"CREATE TABLE granted (id BIGINT AUTO_INCREMENT PRIMARY KEY, lock_key VARBINARY(320) NOT NULL, fence BIGINT UNSIGNED NOT NULL, early BOOL NOT NULL)",
		`CREATE TRIGGER granted_update AFTER UPDATE ON lease FOR EACH ROW
			IF NEW.token IS NOT NULL AND NEW.acquired_at <> OLD.acquired_at THEN
				INSERT INTO granted (lock_key, fence, early)
					VALUES (NEW.lock_key, NEW.fence, OLD.token IS NOT NULL AND OLD.expires_at > NEW.acquired_at);
			END IF`,
	} {
		s.Exec(t, statement)
	}
}

// checkForced reads the order of the server: no lease is granted while another
// stands (P1), and fences rise with grants and with guarded writes (P2).
func checkForced(t *testing.T, s *tiers.Tiers) {
	t.Helper()
	if n := s.Count(t, "SELECT COUNT(*) FROM granted WHERE early"); n != 0 {
		t.Errorf("%d leases were granted while another stood", n)
	}
	if n := s.Count(t, "SELECT COUNT(*) FROM granted"); n < 10 {
		t.Errorf("%d grants: too little happened", n)
	}
	for table, bad := range map[string]string{"granted": "fence <= fence_before", "written": "fence < fence_before"} {
		if n := s.Count(t, "SELECT COUNT(*) FROM (SELECT fence, MAX(fence) OVER (PARTITION BY lock_key ORDER BY id "+
			"ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS fence_before FROM "+table+") f WHERE "+bad); n != 0 {
			t.Errorf("%s: %d came after one of a higher fence", table, n)
		}
	}
}

// operate takes leases away for a while. It returns how
// many, each of which was logged with who asked.
func operate(t *testing.T, s *tiers.Tiers, lasting time.Duration) (forced int) {
	t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	operator, err := mysqlauth.Open(s.Database.DSN(), mysqlauth.WithSweepInterval(0), mysqlauth.WithLogger(zap.New(core)))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(lasting); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		records, err := operator.List(t.Context(), soakNamespace+"/", "", 10)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range records {
			if !r.Held || r.Age < time.Duration(100+100*i)*time.Millisecond {
				continue
			}
			before, err := operator.ForceRelease(t.Context(), r.Key, "the test", false)
			if err != nil {
				t.Fatal(err)
			}
			after, err := operator.Show(t.Context(), r.Key)
			if err != nil {
				t.Fatal(err)
			}
			if after.Fence < before.Fence {
				t.Errorf("%s: fence %d is shown after fence %d", r.Key, after.Fence, before.Fence)
			}
			if forced++; forced%2 == 0 {
				s.Flush(t) // no mark keeps the next from asking at once
			}
		}
	}
	if err := operator.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if logged := logs.FilterField(zap.String("by", "the test")).Len(); logged != forced {
		t.Errorf("%d leases were taken away, %d are in the log", forced, logged)
	}
	return forced
}

func runForced() int {
	l, _, err := openNode(tier.WithTTL(forcedTTL), tier.WithWait(forcedPatience))
	if err != nil {
		return wrong(err)
	}
	db, err := sql.Open("mysql", setting("dsn"))
	if err != nil {
		return wrong(err)
	}
	db.SetMaxOpenConns(4)
	ctx, stop := untilAsked()
	defer stop()
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			for rng := nodeRand(i); ctx.Err() == nil; {
				forcedTurn(ctx, l, db, forcedKey(rng.IntN(forcedKeys)), time.Duration(rng.IntN(600))*time.Millisecond)
			}
		})
	}
	workers.Wait()
	if err := errors.Join(closeNode(l), db.Close()); err != nil {
		return wrong(fmt.Errorf("close: %w", err))
	}
	return 0
}

// forcedTurn holds a key for a while, and writes under it, guarded.
func forcedTurn(ctx context.Context, l *tier.Locker, db *sql.DB, key string, hold time.Duration) {
	lease, err := l.Acquire(ctx, key)
	if err != nil {
		switch {
		case errors.Is(err, tier.ErrUnavailable): // a starved machine
			say("unanswered")
		case ctx.Err() == nil: // who waits for so long was not woken
			wrong(err)
		}
		return
	}
	from := now()
	forcedWrite(db, lease)
	select {
	case <-lease.Done():
	case <-time.After(hold):
	}
	until := now()
	forcedWrite(db, lease)
	saySpan(lease, from, until)
	switch err := lease.Release(context.Background()); {
	case err == nil:
	case errors.Is(err, tier.ErrLost):
		say("lost")
	default:
		wrong(err)
	}
}

func forcedWrite(db *sql.DB, lease *tier.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		wrong(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "INSERT INTO written (lock_key, fence) VALUES (?, ?)", []byte(lease.Key()), lease.Fence()); err != nil {
		wrong(err)
		return
	}
	switch err := idempotency.ConfirmTx(ctx, tx, lease); {
	case errors.Is(err, idempotency.ErrStaleFence):
		say("stale")
		return
	case errors.Is(err, idempotency.ErrRetryTx):
		say("again")
		return
	case err != nil:
		wrong(err)
		return
	}
	if err := tx.Commit(); err != nil {
		wrong(err)
		return
	}
	say("written")
}
