// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// TestMillion_sweptWhileWorkersLock has another process sweep a million idle
// rows while 64 workers lock, some of the rows among them. No fence goes back,
// no error reaches a worker, and the workers get on as without the sweeper.
// Killed sweepers change nothing, and the next one goes on.
func TestMillion_sweptWhileWorkersLock(t *testing.T) {
	digits, slices, slice, kills := 4, 3, 300*time.Millisecond, 2
	if soak {
		digits, slices, slice, kills = 6, 10, 1500*time.Millisecond, 20
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			m := newMillion(t, engine, digits)
			m.work(t)
			m.compare(t, slices, slice)
			m.killSweepers(t, kills)
			m.finish(t)
		})
	}
}

// million is the table and those who work on it.
type million struct {
	tiers  *tiers.Tiers
	rows   int
	fences *fences

	pairs, unknown atomic.Int64 // unknown: releases without an answer in time
}

const (
	// ancient is above the server's clock, so that only the floor keeps the
	// fences of swept rows from falling back.
	ancient = uint64(4_000_000_000_000_000_000)
	// guardKey is the key under whose lease one process at a time sweeps.
	guardKey = "\x00tierlock/sweep"
)

func newMillion(t *testing.T, engine stack.Engine, digits int) *million {
	t.Helper()
	server := stack.SharedSQL(t, engine)
	if soak { // the shared ones are small, and would read from disk what others pushed out
		server = stack.StartSQL(t, engine, "--innodb-buffer-pool-size=1G")
	}
	m := &million{tiers: tiers.On(t, stack.SharedRedis(t), server), rows: 1}
	from, number := "", "0"
	for i := range digits {
		m.rows *= 10
		digit := " (SELECT 0 d"
		for d := 1; d < 10; d++ {
			digit += fmt.Sprintf(" UNION ALL SELECT %d", d)
		}
		from += fmt.Sprintf("%s%s) t%d", map[bool]string{true: ","}[i > 0], digit, i)
		number = fmt.Sprintf("(%s) * 10 + t%d.d", number, i)
	}
	// Each row has its number in its fence.
	began := time.Now()
	m.execLong(t, fmt.Sprintf("INSERT INTO lease (lock_key, token, fence, holder, acquired_at, expires_at)"+
		" SELECT CONCAT('million/idle-', LPAD(n, %d, '0')), NULL, %d + n, '', UTC_TIMESTAMP(6) - INTERVAL 3 DAY, UTC_TIMESTAMP(6) - INTERVAL 2 DAY"+
		" FROM (SELECT %s AS n FROM%s) numbers ORDER BY n", digits, ancient, number, from))
	t.Logf("%d rows made in %v", m.idle(t), time.Since(began).Round(time.Millisecond))
	m.fences = newFences(func(key string) uint64 {
		n, err := strconv.ParseUint(strings.TrimPrefix(key, "idle-"), 10, 64)
		if err != nil {
			t.Errorf("%v", err)
		}
		return ancient + n
	})
	return m
}

// execLong runs a statement that may take minutes on a million rows.
func (m *million) execLong(t *testing.T, statement string) {
	t.Helper()
	if _, err := m.tiers.Admin.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// idle counts the rows that the sweeper may take.
func (m *million) idle(t *testing.T) int {
	t.Helper()
	return m.tiers.Count(t, "SELECT COUNT(*) FROM lease WHERE token IS NULL AND expires_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY")
}

func (m *million) key(n int) string {
	return fmt.Sprintf("idle-%0*d", len(strconv.Itoa(m.rows-1)), n)
}

// work starts the workers: half of what they lock are keys of the whole table,
// half are few keys spread over it that grow old whenever they are free.
func (m *million) work(t *testing.T) {
	t.Helper()
	const processes, workers, hot = 2, 32, 200
	working, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var lockers []*tier.Locker
	for range processes {
		node := m.tiers.NodeWith(t, "")
		locker, err := tier.New(node.Filter, node.Authority, tier.WithNamespace("million"), tier.WithWait(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		lockers = append(lockers, locker)
		for range workers {
			running.Go(func() {
				for working.Err() == nil {
					n := rand.IntN(m.rows)
					if rand.IntN(2) == 0 {
						n = n % hot * (m.rows / hot)
					}
					m.pair(t, locker, m.key(n))
				}
			})
		}
	}
	running.Go(func() {
		for working.Err() == nil {
			// Of a key, never of a range: no lock of this statement spans rows.
			_, err := m.tiers.Admin.ExecContext(t.Context(), "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY"+
				" WHERE lock_key = ? AND token IS NULL", []byte("million/"+m.key(rand.IntN(hot)*(m.rows/hot))))
			if err != nil && working.Err() == nil {
				t.Errorf("age: %v", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
		for _, locker := range lockers {
			closeLocker(t, locker)
		}
	})
}

func (m *million) pair(t *testing.T, locker *tier.Locker, key string) {
	before := m.fences.before(key)
	lease, err := locker.Acquire(context.Background(), key)
	if err != nil {
		t.Errorf("acquire: %v", err)
		return
	}
	m.fences.granted(t, key, before, lease.Fence())
	switch err := lease.Release(context.Background()); {
	case errors.Is(err, context.DeadlineExceeded): // a second was too short for this machine; it goes on behind
		m.unknown.Add(1)
	case err != nil:
		t.Errorf("release: %v", err)
	}
	m.pairs.Add(1)
}

// compare measures the workers with and without the sweeper in turn.
func (m *million) compare(t *testing.T, rounds int, slice time.Duration) {
	sweeper := m.sweeper(t)
	defer sweeper.kill()
	left := m.idle(t)
	measure := func() float64 {
		from, began := m.pairs.Load(), time.Now()
		time.Sleep(slice)
		return float64(m.pairs.Load()-from) / time.Since(began).Seconds()
	}
	measure() // warm up
	var with, without []float64
	for i := range 2 * rounds {
		// off on on off off on ...: a drift of the machine meets both alike
		if (i+1)/2%2 == 0 {
			without = append(without, measure())
			continue
		}
		sweeper.order(t, "sweep")
		with = append(with, measure())
		sweeper.order(t, "rest")
	}
	swept := left - m.idle(t)
	ratio := median(with) / median(without)
	t.Logf("%.0f pairs/s while %d rows were swept, %.0f without the sweeper: %.1f %%; slices %.0f and %.0f",
		median(with), swept, median(without), 100*ratio, with, without)
	if swept < 1000 {
		t.Errorf("only %d rows were swept", swept)
	}
	if soak && ratio < 0.9 {
		t.Errorf("the sweeper costs the workers %.1f %%", 100-100*ratio)
	}
}

// killSweepers kills sweeping processes wherever they are.
func (m *million) killSweepers(t *testing.T, kills int) {
	var waits []time.Duration
	for i := range kills {
		sweeper := m.sweeper(t)
		const guards = "SELECT COALESCE(MAX(fence), 0) FROM lease WHERE lock_key = ?"
		before := m.tiers.Count(t, guards, []byte(guardKey))
		sweeper.order(t, "sweep")
		ordered := time.Now()
		for m.tiers.Count(t, guards, []byte(guardKey)) == before {
			if time.Since(ordered) > 2*time.Minute {
				t.Fatal("a sweeper waits for the guard of a killed one for longer than its lease")
			}
			time.Sleep(5 * time.Millisecond)
		}
		waits = append(waits, time.Since(ordered).Round(time.Millisecond))
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		sweeper.kill()
		if left := m.guard(t); left > time.Minute {
			t.Errorf("the guard of a killed sweeper stands for %v", left)
		}
		if soak && i == 0 {
			continue // the next waits for it
		}
		m.tiers.Exec(t, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) WHERE lock_key = ? AND token IS NOT NULL", []byte(guardKey))
	}
	t.Logf("sweepers began after %v, each after a kill", waits)
}

// guard is how long the sweepers' lease still stands.
func (m *million) guard(t *testing.T) time.Duration {
	t.Helper()
	micros := m.tiers.Count(t, "SELECT COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)), 0) FROM lease"+
		" WHERE lock_key = ? AND token IS NOT NULL", []byte(guardKey))
	return time.Duration(micros) * time.Microsecond
}

// finish lets a last sweeper end the work.
func (m *million) finish(t *testing.T) {
	sweeper := m.sweeper(t)
	sweeper.order(t, "sweep")
	// The hot keys grow old again and again.
	const enough = 1000
	limit := time.Now().Add(20*time.Second + time.Duration(m.rows)*time.Millisecond)
	for left := m.idle(t); left > enough; left = m.idle(t) {
		if time.Now().After(limit) {
			t.Fatalf("%d rows are left", left)
		}
		time.Sleep(50 * time.Millisecond)
	}
	sweeper.order(t, "rest")
	if err := sweeper.end(); err != nil {
		t.Errorf("the sweeper: %v", err)
	}
	keys, again := m.fences.count()
	t.Logf("%d pairs on %d keys, %d of them locked again; %d releases without an answer in time", m.pairs.Load(), keys, again, m.unknown.Load())
	if again < 100 {
		t.Errorf("only %d keys were locked more than once", again)
	}
}

// sweeperProcess is a process that sweeps when it is told to.
type sweeperProcess struct {
	*process
	resting chan struct{}
}

func (m *million) sweeper(t *testing.T) *sweeperProcess {
	t.Helper()
	s := &sweeperProcess{resting: make(chan struct{}, 1)}
	s.process = startProcess(t, "sweeper", map[string]string{"dsn": m.tiers.Database.DSN()}, func(line string) {
		if line == "resting" {
			s.resting <- struct{}{}
			return
		}
		t.Errorf("sweeper: %s", line)
	})
	return s
}

// order tells it to "sweep" or to "rest", and waits until it rests.
func (s *sweeperProcess) order(t *testing.T, what string) {
	t.Helper()
	if _, err := fmt.Fprintln(s.stdin, what); err != nil {
		t.Fatal(err)
	}
	if what != "rest" {
		return
	}
	select {
	case <-s.resting:
	case <-time.After(30 * time.Second):
		t.Fatal("the sweeper does not come to rest")
	}
}

func init() { roles["sweeper"] = runSweeper }

func runSweeper() int {
	authority, err := mysqlauth.Open(setting("dsn"), mysqlauth.WithSweepInterval(0))
	if err != nil {
		return wrong(err)
	}
	var sweeping sync.WaitGroup
	stop := context.CancelFunc(func() {})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "rest" {
			stop()
			sweeping.Wait()
			say("resting")
			continue
		}
		var ctx context.Context
		ctx, stop = context.WithCancel(context.Background())
		sweeping.Go(func() {
			for ctx.Err() == nil {
				_, err := authority.Sweep(ctx)
				if err != nil && ctx.Err() == nil && driver.ClassOf(err) != driver.ClassContention {
					wrong(err)
				}
				time.Sleep(20 * time.Millisecond) // all is done, or another is at it
			}
		})
	}
	stop()
	sweeping.Wait()
	closing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := authority.Close(closing); err != nil {
		return wrong(err)
	}
	return 0
}

// fences is what a test knows of the fences of its keys.
type fences struct {
	start func(key string) uint64 // of a key never granted before

	mu    sync.Mutex
	last  map[string]uint64
	again int // keys granted more than once
}

func newFences(start func(key string) uint64) *fences {
	return &fences{start: start, last: make(map[string]uint64)}
}

// before is the highest fence that anybody had when the caller was about to
// acquire the key: what it gets is above it.
func (f *fences) before(key string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, ok := f.last[key]; ok {
		return last
	}
	return f.start(key)
}

func (f *fences) granted(t *testing.T, key string, before, fence uint64) {
	t.Helper()
	if fence <= before {
		t.Errorf("%s: fence %d after %d", key, fence, before)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	last, known := f.last[key]
	if known {
		f.again++
	}
	f.last[key] = max(last, fence)
}

func (f *fences) count() (keys, again int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.last), f.again
}

// closeLocker closes a locker that holds nothing.
func closeLocker(t *testing.T, locker *tier.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := locker.Close(ctx); err != nil && !errors.Is(err, tier.ErrClosed) {
		t.Errorf("close: %v", err)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
