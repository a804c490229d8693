// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tierlock/tierlock/tier"
)

// Guard makes writes to one business database happen once per idempotency key.
// All methods are safe for concurrent use, by many processes.
type Guard struct {
	db      *sql.DB
	options options
	tables  tables
	metrics *metrics

	autocommit atomic.Bool // the pool's sessions were seen to commit by themselves

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// New guards the writes to the database of db, the business's own pool, with the
// tables that [EnsureSchema] makes. It sends nothing; [Guard.Check] does.
//
// Errors: [ErrOption], [ErrBadRetention].
func New(db *sql.DB, opts ...Option) (*Guard, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrOption)
	}
	m, err := newMetrics(o.registerer)
	if err != nil {
		return nil, err
	}
	g := &Guard{db: db, options: o, tables: newTables(o.prefix), metrics: m}
	g.life, g.end = context.WithCancel(context.Background())
	if o.reapEvery > 0 {
		g.running.Go(g.reapRegularly)
	}
	return g, nil
}

// Close ends the work in the background. It does not close the pool, and does not
// wait for writes under way: those end as if it had not been called.
func (g *Guard) Close(ctx context.Context) error {
	g.end()
	ended := make(chan struct{})
	go func() {
		g.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("idempotency: close: %w", ctx.Err())
	}
}

// checkNamespace refuses leases of a locker with another namespace.
func (g *Guard) checkNamespace(l *tier.Lease) error {
	if full := l.Tenure().Key; !strings.HasPrefix(full, g.options.namespace+"/") {
		return fmt.Errorf("%w: %q, the guard's namespace is %q", ErrWrongKey, full, g.options.namespace)
	}
	return nil
}

// provable refuses, before any I/O, a lease that the guard has no way to judge.
func (g *Guard) provable(l *tier.Lease) error {
	if g.options.highWater && l.Fence() != 0 {
		return nil
	}
	return provable(l)
}
