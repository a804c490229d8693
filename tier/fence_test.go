// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tier_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier/driver"
)

// TestFence_strictlyIncreases drives one key from four processes through random
// steps, while rows expire, are revoked, freed and swept away, processes are
// stopped and killed, Redis forgets and the server crashes. The fence rises
// from each tenure to the next (P2), and what a guarded write has written is
// never followed by a write of an earlier tenure (P3).
//
// The order is the server's: a trigger notes every grant in the transaction
// that makes it, under the lock of the key's row; and every guarded write notes
// itself under the lock of the one row it changes.
//
// TIERLOCK_SEED repeats a run's random choices.
func TestFence_strictlyIncreases_P2(t *testing.T) {
	steps, restarts := 10_000, 2
	if soak {
		steps, restarts = 100_000, 20
	}
	seed := rand.Uint64()
	if given := os.Getenv("TIERLOCK_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			t.Logf("TIERLOCK_SEED=%d", seed)
			f := newFenceRun(t, engine, seed)
			f.drive(t, steps, restarts)
			f.check(t)
		})
	}
}

// fenceRun is a key's database, with its history, and the processes.
type fenceRun struct {
	tiers     *tiers.Tiers
	authority *mysqlauth.Authority
	rand      *rand.Rand
	seed      uint64

	mu    sync.Mutex
	nodes [4]*fenceNode
	steps atomic.Int64
	did   map[string]int // steps by kind
}

// startFence is above the server's clock, so that only the floor keeps fences
// from falling back when the row has been swept away.
const startFence = 4_000_000_000_000_000_000

// block is how many fences a lease reserves.
const block = 16_384

func newFenceRun(t *testing.T, engine stack.Engine, seed uint64) *fenceRun {
	t.Helper()
	f := &fenceRun{
		tiers: tiers.On(t, stack.SharedRedis(t), stack.StartSQL(t, engine)),
		seed:  seed, rand: rand.New(rand.NewPCG(seed, uint64(engine))), did: make(map[string]int),
	}
	// A grant is a token that no operator wrote. AUTO_INCREMENT numbers them in
	// the order in which their statements held the row.
	const note = " IF NEW.token IS NOT NULL AND NEW.holder <> 'operator' AND %s THEN" +
		" INSERT INTO granted (fence, token) VALUES (NEW.fence, NEW.token); END IF"
	for _, statement := range []string{
		"CREATE TABLE granted (seq BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL, token BINARY(16) NOT NULL)",
		"CREATE TABLE written (seq BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL, token BINARY(16) NOT NULL, seen BIGINT UNSIGNED NOT NULL)",
		"CREATE TABLE latest (id INT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL)",
		"INSERT INTO latest VALUES (1, 0)",
		"CREATE TRIGGER granted_update AFTER UPDATE ON lease FOR EACH ROW" + fmt.Sprintf(note, "NEW.lock_key = 'fence/k' AND NOT (NEW.token <=> OLD.token)"),
		"CREATE TRIGGER granted_insert AFTER INSERT ON lease FOR EACH ROW" + fmt.Sprintf(note, "NEW.lock_key = 'fence/k'"),
		fmt.Sprintf("INSERT INTO lease (lock_key, fence, holder, acquired_at, expires_at) VALUES ('fence/k', %d, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", uint64(startFence)),
	} {
		f.tiers.Exec(t, statement)
	}
	var err error
	f.authority, err = mysqlauth.Open(f.tiers.Database.DSN(), mysqlauth.WithSweepInterval(0), mysqlauth.WithRetention(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.authority.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for i := range f.nodes {
		f.nodes[i] = f.start(t, i)
	}
	t.Cleanup(func() {
		for _, n := range f.nodes {
			n.kill()
		}
	})
	return f
}

// start runs a process that works on the key until it is stopped.
func (f *fenceRun) start(t *testing.T, i int) *fenceNode {
	t.Helper()
	n, err := startFenceNode(map[string]string{
		"redis": f.tiers.Redis.URL(), "prefix": f.tiers.Prefix, "dsn": f.tiers.Database.DSN(),
		"seed": strconv.FormatUint(f.seed+uint64(i)+uint64(f.steps.Load())<<8, 10),
	}, func(line string) {
		kind, text, _ := strings.Cut(line, " ")
		if kind == "wrong" {
			t.Errorf("process %d: %s", i, text)
			return
		}
		f.step(kind)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (f *fenceRun) step(kind string) {
	f.mu.Lock()
	f.did[kind]++
	f.mu.Unlock()
	f.steps.Add(1)
}

// drive does what goes wrong, until the steps are done.
func (f *fenceRun) drive(t *testing.T, steps, restarts int) {
	began := time.Now()
	nextRestart := int64(steps / (restarts + 1))
	restarted := 0
	for f.steps.Load() < int64(steps) && !t.Failed() {
		time.Sleep(time.Duration(20+f.rand.IntN(80)) * time.Millisecond)
		if restarted < restarts && f.steps.Load() > nextRestart*int64(restarted+1) {
			restarted++
			if err := f.tiers.Database.Server().Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.step("restart")
			continue
		}
		f.disturb(t)
	}
	for _, n := range f.nodes {
		if err := n.end(); err != nil {
			t.Errorf("a process ended with %v", err)
		}
	}
	t.Logf("%d steps in %v: %v", f.steps.Load(), time.Since(began).Round(time.Millisecond), f.did)
}

// disturb takes one random step against the key or a process.
func (f *fenceRun) disturb(t *testing.T) {
	const row = " WHERE lock_key = 'fence/k'"
	switch p := f.rand.IntN(100); {
	case p < 30:
		f.tiers.Exec(t, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6)"+row+" AND token IS NOT NULL")
		f.step("force-expire")
	case p < 45:
		f.tiers.Exec(t, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6)"+row)
		f.step("force-free")
	case p < 50:
		token := driver.NewToken()
		f.tiers.Exec(t, "UPDATE lease SET token = ?, holder = 'operator'"+row+" AND token IS NOT NULL", token[:])
		f.step("revoke")
	case p < 85:
		f.sweep(t)
	case p < 95:
		f.tiers.Flush(t)
		f.step("flush")
	case p < 98:
		i := f.rand.IntN(len(f.nodes))
		// It stops renewing, and works on as if nothing had happened.
		f.nodes[i].pause()
		time.Sleep(time.Duration(f.rand.IntN(1200)) * time.Millisecond)
		f.nodes[i].resume()
		f.step("stop")
	default:
		i := f.rand.IntN(len(f.nodes))
		f.nodes[i].kill()
		f.step("kill")
		f.nodes[i] = f.start(t, i)
	}
}

// sweep lets the row grow old, when it is free, and sweeps it away.
func (f *fenceRun) sweep(t *testing.T) {
	// Freed and aged in one statement: there is always somebody who wants it.
	f.tiers.Exec(t, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR WHERE lock_key = 'fence/k'")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	// Another may be at it, and connections broke when the server crashed.
	swept, err := f.authority.Sweep(ctx)
	if driver.ClassOf(err) == driver.ClassConfig {
		t.Errorf("sweep: %v", err)
	}
	f.step("sweep")
	if swept > 0 {
		f.mu.Lock()
		f.did["(rows swept)"] += swept
		f.mu.Unlock()
	}
}

// check reads the history in the server's order.
func (f *fenceRun) check(t *testing.T) {
	grants := f.history(t, "SELECT seq, fence, HEX(token), 0 FROM granted ORDER BY seq")
	writes := f.history(t, "SELECT seq, fence, HEX(token), seen FROM written ORDER BY seq")
	last := uint64(startFence)
	granted := make(map[string]uint64, len(grants))
	for i, g := range grants {
		if g.fence <= last {
			t.Errorf("grant %d of %d has fence %d, the one before it %d", i, len(grants), g.fence, last)
		}
		last = g.fence
		granted[g.token] = g.fence
	}
	var before past
	tenures := 0
	for i, w := range writes {
		// The row has the last fence of the lease's block.
		if last := granted[w.token]; w.fence > last || w.fence+block <= last {
			t.Errorf("write %d proved fence %d with a token that was granted fences up to %d", i, w.fence, last)
		}
		switch {
		case w.token == before.token && w.fence < before.fence:
			t.Errorf("write %d: the fence went from %d to %d within a lease", i, before.fence, w.fence)
		case w.token != before.token && w.fence <= before.fence:
			t.Errorf("write %d of fence %d came after one of fence %d", i, w.fence, before.fence)
		}
		if w.seen != before.fence {
			t.Errorf("write %d read fence %d, but the one before it had written %d", i, w.seen, before.fence)
		}
		if w.fence != before.fence {
			tenures++
		}
		before = w
	}
	t.Logf("%d grants, %d guarded writes in %d tenures", len(grants), len(writes), tenures)
	// A test that tests nothing passes as well.
	for _, kind := range []string{"acquired", "released", "written", "stale", "restart", "sweep", "(rows swept)", "force-expire", "force-free"} {
		if f.did[kind] == 0 {
			t.Errorf("no step %q in the whole run", kind)
		}
	}
	if len(grants) < 100 || tenures < 100 {
		t.Errorf("%d grants and %d tenures with writes are too few", len(grants), tenures)
	}
}

// past is a line of the history.
type past struct {
	seq, fence uint64
	token      string
	seen       uint64
}

func (f *fenceRun) history(t *testing.T, query string) (all []past) {
	t.Helper()
	rows, err := f.tiers.Admin.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var p past
		if err := rows.Scan(&p.seq, &p.fence, &p.token, &p.seen); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
