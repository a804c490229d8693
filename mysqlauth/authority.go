// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

var _ driver.Authority = (*Authority)(nil)

// Authority is a [driver.Authority] on a MySQL or MariaDB server. It is safe
// for concurrent use. Its zero value is of no use.
type Authority struct {
	db      *sql.DB
	owned   bool // Close closes db
	log     *zap.Logger
	tables  tables
	timeout time.Duration // of a claim or a look on the server
	bound   time.Duration // of a call without a deadline
	opts    options
	metrics *metrics // nil: none

	sessions *sessions
	claims   *lane[*claimCall]
	looks    *lane[*lookCall]
	renews   *lane[*renewCall]
	releases *lane[*releaseCall]
	settler  *settler
	sweeper  *sweeper

	ledger  *ledger
	life    context.Context // ends when Close gives up or is done
	end     context.CancelFunc
	running sync.WaitGroup // every goroutine but the lanes that answer callers
	asking  sync.WaitGroup // those lanes

	part                    atomic.Uint64 // numbers the halves of batches
	retried, settled, steps atomic.Uint64
}

// Stats counts what an operator may want to see.
type Stats struct {
	Retried    uint64 // statements repeated after a deadlock or a lock's timeout
	Settled    uint64 // grants of unknown outcome that were undone
	ClockSteps uint64 // forward steps of the server's clock, as far as proven
}

// Open makes an authority with a pool of its own; Close closes it. Nothing is
// sent before the first call: Check says whether the server will do.
//
// The DSN is the driver's, user:password@tcp(host:port)/database. What it says
// of time zones, isolation, character sets and the like means nothing here.
func Open(dsn string, opts ...Option) (*Authority, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	db, err := openPool(dsn, o)
	if err != nil {
		return nil, err
	}
	a, err := newAuthority(db, o, true)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return a, nil
}

// New makes an authority on a pool that nobody else uses and that Close leaves
// open. A pool whose DSN has interpolateParams=true saves a round trip for
// each statement; one with a ConnMaxLifetime of a minute leaves a server that was
// replaced within that time.
func New(db *sql.DB, opts ...Option) (*Authority, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrOption)
	}
	if most := db.Stats().MaxOpenConnections; most != 0 {
		if most < minConns {
			return nil, fmt.Errorf("%w: a pool of %d connections is too small, at least %d are needed", ErrOption, most, minConns)
		}
		o.maxOpen = most
	}
	return newAuthority(db, o, false)
}

func newAuthority(db *sql.DB, o options, owned bool) (*Authority, error) {
	metrics, err := register(o.registerer)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	names := newTables(o.prefix)
	names.exact = owned
	a := &Authority{
		db: db, owned: owned, log: o.logger, tables: names, timeout: o.timeout, bound: bound(o.timeout), opts: o, metrics: metrics,
		ledger: newLedger(), life: life, end: end,
	}
	spare := o.maxOpen - ownConns
	a.sessions = &sessions{
		db: db, tables: a.tables, metrics: metrics, life: life,
		spare: make(chan struct{}, spare), waits: make(chan struct{}, spare-1), age: maxAge,
		failures: make(map[string]error),
	}
	if owned {
		a.sessions.flush = func() {
			db.SetMaxIdleConns(0)
			db.SetMaxIdleConns(o.maxOpen)
		}
	}
	a.claims, a.looks, a.renews, a.releases = newClaims(a), newLooks(a), newRenews(a), newReleases(a)
	a.settler, a.sweeper = newSettler(a), newSweeper(a)
	a.asking.Go(a.claims.loop)
	a.asking.Go(a.looks.loop)
	a.asking.Go(a.renews.loop)
	a.running.Go(a.releases.loop)
	a.running.Go(a.settler.loop)
	if o.sweepEvery > 0 {
		a.running.Go(a.sweeper.loop)
	}
	metrics.watch(a)
	return a, nil
}

// Stats returns the counts since the start.
func (a *Authority) Stats() Stats {
	return Stats{Retried: a.retried.Load(), Settled: a.settled.Load(), ClockSteps: a.steps.Load()}
}

// Timeout implements [driver.Authority].
func (a *Authority) Timeout() time.Duration { return a.timeout }

// Observe implements [driver.Authority].
func (a *Authority) Observe(o driver.Observer) { a.sessions.observer.Store(&o) }

// Close implements [driver.Authority]. Its error is or holds a *[LeftError]
// when keys are left to expire. The second call does nothing.
func (a *Authority) Close(ctx context.Context) error {
	if !a.ledger.close() {
		return nil
	}
	a.metrics.unwatch(a)
	a.sweeper.stop()
	err := a.drain(ctx)
	a.end()
	a.asking.Wait() // bounded: every statement ends with life
	a.running.Wait()
	if keys := a.ledger.keys(); len(keys) > 0 {
		err = errors.Join(err, &LeftError{Keys: keys})
	}
	if a.owned {
		err = errors.Join(err, a.db.Close())
	}
	return err
}

// drain waits for the work in the order in which it makes more: calls, then
// what they left behind.
func (a *Authority) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, a.end)
	defer stop()
	err := a.ledger.wait(ctx, a.ledger.noCalls)
	close(a.claims.stop)
	close(a.looks.stop)
	close(a.renews.stop)
	a.asking.Wait()
	if err == nil {
		err = a.ledger.wait(ctx, a.ledger.noDebts)
	}
	close(a.releases.stop)
	close(a.settler.stop)
	return err
}
