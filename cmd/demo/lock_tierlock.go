// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"

	tierlockfx "github.com/tierlock/tierlock/fx"
	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// Own names in both tiers, so that the demo can share servers with a service
// that uses tierlock; its namespace is in demo.yaml.
const redisPrefix = "tierlock-demo:"

var (
	demoTables  = mysqlauth.WithTablePrefix("tierlock_demo_")
	guardTables = idempotency.WithTablePrefix("tierlock_demo_")
)

func ensureTables(ctx context.Context, db *sql.DB) error {
	return errors.Join(mysqlauth.EnsureSchema(ctx, db, demoTables), idempotency.EnsureSchema(ctx, db, guardTables))
}

// tierlock is the lock that the demo is about: both tiers, and a guard.
type tierlock struct {
	app    *fx.App
	locker *tier.Locker
	guard  *idempotency.Guard // nil: writes are not guarded
}

// openTierlock wires it as a service does.
func openTierlock(ctx context.Context, s setup, shop *shop, metrics prometheus.Registerer) (locker, error) {
	c, err := s.Config.parse(s)
	if err != nil {
		return nil, err
	}
	l := &tierlock{}
	guard := fx.Options()
	if s.Guard {
		guard = fx.Options(tierlockfx.Guard, fx.Supply(shop.db, []idempotency.Option{guardTables}), fx.Populate(&l.guard))
	}
	l.app = fx.New(fx.NopLogger, fx.Supply(c), tierlockfx.Connect, tierlockfx.Module, guard, fx.Populate(&l.locker),
		fx.Provide(func() prometheus.Registerer { return metrics }),
		fx.Supply(
			[]redisfast.Option{redisfast.WithPrefix(redisPrefix)},
			[]mysqlauth.Option{demoTables, mysqlauth.WithMetrics(metrics)},
			[]tier.Option{tier.WithHolder(fmt.Sprintf("node %d", s.Node))},
		))
	if err := l.app.Start(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *tierlock) rung() string { return l.locker.Rung(lockKey(0)).String() }

func (l *tierlock) close(ctx context.Context) error { return l.app.Stop(ctx) }

func (l *tierlock) acquire(ctx context.Context, key string) (turn, error) {
	lease, err := l.locker.Acquire(ctx, key)
	if err != nil {
		return nil, refusal(ctx, err)
	}
	return leaseTurn{lease: lease, guard: l.guard != nil}, nil
}

func (l *tierlock) acquireAll(ctx context.Context, keys []string) ([]turn, error) {
	leases, err := l.locker.AcquireAll(ctx, keys...)
	if err != nil {
		return nil, refusal(ctx, err)
	}
	held := make([]turn, len(leases))
	for i, lease := range leases {
		held[i] = leaseTurn{lease: lease, guard: l.guard != nil}
	}
	return held, nil
}

func refusal(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case errors.Is(err, tier.ErrHeld):
		return fmt.Errorf("%w: %w", errHeld, err)
	case errors.Is(err, tier.ErrUnavailable):
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
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
