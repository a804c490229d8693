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

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
)

func init() { roles["forced"] = runForced }

const forcedKeys = 3

func forcedKey(i int) string { return fmt.Sprintf("forced-%d", i%forcedKeys) }

// An operator takes leases away, without now, from four processes that work: no
// tenure overlaps the next, fences rise, and guarded writes are in their order.
func TestForceRelease_underLoad_P1_P2(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		lasting := 3 * time.Second
		if soak {
			lasting = 30 * time.Second
		}
		s.Exec(t, "CREATE TABLE written (id BIGINT AUTO_INCREMENT PRIMARY KEY, lock_key VARBINARY(320) NOT NULL, fence BIGINT UNSIGNED NOT NULL)")
		heard := newSpans()
		var nodes []*process
		for i := range 4 {
			nodes = append(nodes, startProcess(t, "forced", nodeSettings(s, i, map[string]string{"seed": "1"}), heard.hear))
		}
		operator, err := mysqlauth.Open(s.Database.DSN(), mysqlauth.WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		forced := 0
		for end := time.Now().Add(lasting); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			records, err := operator.List(t.Context(), soakNamespace+"/", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if r.Held && forced%3 == 0 || r.Held && r.Age > 300*time.Millisecond {
					if _, err := operator.ForceRelease(t.Context(), r.Key, "the test", false); err != nil {
						t.Fatal(err)
					}
				}
				forced++
			}
		}
		for _, n := range nodes {
			if err := n.end(); err != nil {
				t.Errorf("a process ended with %v", err)
			}
		}
		if err := operator.Close(t.Context()); err != nil {
			t.Error(err)
		}
		heard.check(t)
		if heard.said["lost"] < 3 || heard.said["span"] < 20 {
			t.Error("too little happened")
		}
		if n := s.Count(t, `SELECT COUNT(*) FROM (
				SELECT fence, MAX(fence) OVER (PARTITION BY lock_key ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_it FROM written
			) w WHERE fence < before_it`); n != 0 {
			t.Errorf("%d guarded writes came after one of a higher fence", n)
		}
	})
}

func runForced() int {
	l, _, err := openNode(tier.WithTTL(900*time.Millisecond), tier.WithWait(2*time.Second))
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
		if !expected(err) {
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
