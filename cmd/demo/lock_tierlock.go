// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// Own names in both tiers, so that the demo can share servers with a service
// that uses tierlock.
const (
	demoNamespace = "demo"
	redisPrefix   = "tierlock-demo:"
)

var demoTables = mysqlauth.WithTablePrefix("tierlock_demo_")

// The demo's outages last seconds, so its windows are short enough for every rung
// of the ladder to be seen in one. A service keeps the defaults.
var (
	windows  = breaker.Settings{ProbeEvery: 100 * time.Millisecond, MinSpan: 2 * time.Second, GlobalAfter: 2 * time.Second}
	policies = []tier.Policy{{
		Match:    "inventory/**",
		Degrade:  fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed},
		LocalFor: time.Second,
	}}
)

func ensureLeaseTable(ctx context.Context, db *sql.DB) error {
	return mysqlauth.EnsureSchema(ctx, db, demoTables)
}

// tierlock is the lock that the demo is about: both tiers, and a guard.
type tierlock struct {
	locker *tier.Locker
	guard  bool
}

func openTierlock(ctx context.Context, s setup) (locker, error) {
	filter, err := redisfast.Open(s.Redis, redisfast.WithPrefix(redisPrefix))
	if err != nil {
		return nil, err
	}
	authority, err := mysqlauth.Open(s.MySQL, demoTables)
	if err != nil {
		return nil, errors.Join(err, filter.Close(ctx))
	}
	l, err := tier.New(filter, authority,
		tier.WithNamespace(demoNamespace), tier.WithTTL(s.TTL), tier.WithWait(acquireWait),
		tier.WithHolder(fmt.Sprintf("node %d", s.Node)),
		tier.WithBreaker(windows), tier.WithPolicies(policies...))
	if err != nil {
		return nil, errors.Join(err, authority.Close(ctx), filter.Close(ctx))
	}
	if err := l.Check(ctx); err != nil {
		return nil, errors.Join(err, l.Close(ctx))
	}
	return &tierlock{locker: l, guard: s.Guard}, nil
}

func (l *tierlock) rung() string { return l.locker.Rung(lockKey(0)).String() }

func (l *tierlock) close(ctx context.Context) error { return l.locker.Close(ctx) }

func (l *tierlock) acquire(ctx context.Context, key string) (turn, error) {
	lease, err := l.locker.Acquire(ctx, key)
	switch {
	case err == nil:
		return leaseTurn{lease: lease, guard: l.guard}, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, err
	case errors.Is(err, tier.ErrHeld):
		return nil, fmt.Errorf("%w: %w", errHeld, err)
	case errors.Is(err, tier.ErrUnavailable):
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return nil, err
}

// leaseTurn is a lease held.
type leaseTurn struct {
	lease *tier.Lease
	guard bool
}

func (t leaseTurn) context() context.Context    { return t.lease.Context() }
func (t leaseTurn) deadline() (time.Time, bool) { return t.lease.Deadline(), true }

func (t leaseTurn) level() level {
	switch t.lease.Level() {
	case tier.LevelFull:
		return levelFull
	case tier.LevelAuthority:
		return levelAuthority
	case tier.LevelFilter:
		return levelFilter
	case tier.LevelLocal:
		return levelLocal
	case tier.LevelNone:
	}
	return ""
}

func (t leaseTurn) confirm(ctx context.Context, tx *sql.Tx) error {
	if !t.guard {
		return nil
	}
	err := idempotency.ConfirmTx(ctx, tx, t.lease)
	switch {
	case errors.Is(err, idempotency.ErrStaleFence):
		return fmt.Errorf("%w: %w", errStale, err)
	case errors.Is(err, idempotency.ErrUnfenced):
		return fmt.Errorf("%w: %w", errUnfenced, err)
	}
	return err
}

func (t leaseTurn) release(ctx context.Context) error {
	err := t.lease.Release(ctx)
	if errors.Is(err, tier.ErrLost) {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}
