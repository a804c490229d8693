// SPDX-License-Identifier: Apache-2.0

package tierlockfx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/idempotency"
)

// Guard provides the *idempotency.Guard of the business database, started and
// stopped with the app.
var Guard = fx.Provide(NewGuard)

// GuardParams is what the guard is made of.
type GuardParams struct {
	fx.In

	Config config.Config
	// Business is the pool that the writes go through, not the lock's.
	Business   *sql.DB
	Logger     *zap.Logger           `optional:"true"`
	Registerer prometheus.Registerer `optional:"true"`
	Options    []idempotency.Option  `optional:"true"`
	Lifecycle  fx.Lifecycle
}

// GuardResult is the guard.
type GuardResult struct {
	fx.Out

	Guard *idempotency.Guard
}

// NewGuard makes the guard, in the namespace of the lock. At start it asks whether
// its tables are there and its user may write them, which fails a start, and a
// database that is out does not.
func NewGuard(p GuardParams) (GuardResult, error) {
	options := []idempotency.Option{
		idempotency.WithNamespace(p.Config.Namespace), idempotency.WithLogger(p.Logger), idempotency.WithMetrics(p.Registerer),
	}
	guard, err := idempotency.New(p.Business, append(options, p.Options...)...)
	if err != nil {
		return GuardResult{}, err
	}
	log := p.Logger
	if log == nil {
		log = zap.NewNop()
	}
	p.Lifecycle.Append(fx.StartStopHook(
		func(ctx context.Context) error { return checkGuard(ctx, guard, log) },
		guard.Close,
	))
	return GuardResult{Guard: guard}, nil
}

func checkGuard(ctx context.Context, g *idempotency.Guard, log *zap.Logger) error {
	err := g.Check(ctx)
	if errors.Is(err, idempotency.ErrStoreDown) || errors.Is(err, context.DeadlineExceeded) {
		log.Warn("tierlock starts without the business database", zap.Error(err))
		return nil
	}
	if err != nil {
		return errors.Join(err, g.Close(ctx)) // fx does not stop what did not start
	}
	return nil
}
