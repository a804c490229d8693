// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

const (
	sweepKey = reserved + "sweep"
	sweepTTL = time.Minute
	// sweepFor ends a sweep before its lease does; the next goes on from there.
	sweepFor = 45 * time.Second
	// windowRows bounds what one read passes over.
	windowRows = 10_000
	// sweepRows bounds a transaction, which should take no longer than sweepTx:
	// claims of keys never seen wait for it at the floor.
	sweepRows = 200
	sweepTx   = 100 * time.Millisecond
	// sweepRest is how many times as long as it worked the sweeper rests, at
	// most sweepRestMax: without rest it takes a third of what the server can do.
	sweepRest    = 9
	sweepRestMax = time.Second
)

// sweeper removes rows that nobody has used for longer than the retention.
type sweeper struct {
	*Authority
	rest context.Context // ends when Close begins
	stop context.CancelFunc

	mu    sync.Mutex // one sweep at a time
	after []byte     // where the next step begins
	until []byte     // where its window ends; nil when a new one begins
	rows  int        // of a transaction, as many as fit into sweepTx

	passed  int          // rows before after, where there are metrics
	counted atomic.Int64 // rows that the last pass over all left; -1 before
}

func newSweeper(a *Authority) *sweeper {
	rest, stop := context.WithCancel(a.life)
	w := &sweeper{Authority: a, rest: rest, stop: stop, rows: sweepRows}
	w.counted.Store(-1)
	return w
}

// Sweep removes the rows that nobody has used for longer than the retention,
// and returns how many, after at most 45 seconds; the next call goes on from
// there. It happens in the background anyway; this is for operators and tests.
// A *[driver.Refusal] says that another process is at it.
func (a *Authority) Sweep(ctx context.Context) (int, error) {
	removed := 0
	err := a.detached(ctx, "sweep", func(ctx context.Context) (err error) {
		removed, _, err = a.sweeper.sweep(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// loop sweeps now and then, each process at instants of its own, and again at
// once while rows are left.
func (w *sweeper) loop() {
	every := w.opts.sweepEvery
	more := false
	for more || pause(w.rest, every/2+rand.N(every)) == nil {
		if !w.ledger.enter() { // so that Close waits for the sweeper's lease
			return
		}
		removed, all, err := w.sweep(w.rest)
		w.ledger.leave()
		more = err == nil && !all
		switch {
		case err == nil:
			w.log.Debug("swept", zap.Int("rows", removed))
		case driver.ClassOf(err) == driver.ClassContention || w.rest.Err() != nil:
		default:
			w.log.Warn("sweeping failed: unused rows stay until the next time", zap.Error(err))
		}
	}
}

// sweep works under a lease, so that one process does the work; safety does
// not rest on that. all is false when its time ended before the table did.
func (w *sweeper) sweep(ctx context.Context) (removed int, all bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	grant, err := w.claim(ctx, driver.Claim{Key: sweepKey, TTL: sweepTTL, Holder: "sweeper", Block: 1})
	if err != nil {
		return 0, false, err
	}
	defer func() {
		// Its release goes on behind; waiting lets the next sweep follow at once.
		_, _ = await(ctx, w.Authority, "sweep", w.giveBack(driver.Release{Key: sweepKey, Token: grant.Token, Until: grant.Until}).answer)
	}()
	for end := time.Now().Add(sweepFor); time.Now().Before(end); {
		began := time.Now()
		n, last, err := w.window(ctx)
		removed += n
		w.metrics.window(n)
		if err != nil {
			return removed, false, classify("sweep", err)
		}
		if last {
			w.metrics.sweep()
			return removed, true, nil
		}
		if err := pause(ctx, min(sweepRest*time.Since(began), sweepRestMax)); err != nil {
			return removed, false, err
		}
	}
	return removed, false, nil
}

// window cleans the next rows of a window. The session goes back in between: what waits
// for a locked row may need it.
func (w *sweeper) window(ctx context.Context) (removed int, last bool, err error) {
	s, err := w.sessions.borrow(ctx, "sweep", w.timeout)
	if err != nil {
		return 0, false, err
	}
	defer w.sessions.giveBackBorrowed(s)
	step := &sweepStep{
		s: s, limit: w.timeout, retention: int64(w.opts.retention / time.Second),
		after: w.after, until: w.until, most: w.rows,
	}
	if err := step.find(); err != nil {
		return 0, false, err
	}
	if err := step.retire(); err != nil {
		return 0, false, err
	}
	began := time.Now()
	removed, err = step.remove()
	if err != nil {
		return 0, false, err
	}
	if time.Since(began) > sweepTx {
		w.rows = max(w.rows/2, 1)
	} else {
		w.rows = min(w.rows*2, sweepRows)
	}
	if w.metrics != nil {
		left, err := step.count()
		if err != nil {
			return removed, false, err
		}
		w.passed += left
	}
	w.after, w.until = step.reached, step.until
	if bytes.Equal(step.reached, step.until) {
		w.until = nil
	}
	if last = bytes.Equal(step.reached, lastKey); last {
		if w.metrics != nil {
			w.counted.Store(int64(w.passed))
		}
		w.after, w.passed = nil, 0
		_, err = s.exec(w.timeout, w.tables.canaryStale())
	}
	return removed, last, err
}
