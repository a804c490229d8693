// SPDX-License-Identifier: Apache-2.0

package tierlockfx

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// LockerParams is what the locker is made of.
type LockerParams struct {
	fx.In

	Config     config.Config
	Filter     driver.Filter `optional:"true"`
	Authority  driver.Authority
	Logger     *zap.Logger           `optional:"true"`
	Registerer prometheus.Registerer `optional:"true"`
	Options    []tier.Option         `optional:"true"`
	Lifecycle  fx.Lifecycle
}

// LockerResult is the locker.
type LockerResult struct {
	fx.Out

	Locker *tier.Locker
}

// NewLocker makes the locker, which owns filter and authority from then on. What
// it asks the servers it asks at start.
func NewLocker(p LockerParams) (LockerResult, error) {
	options := append(p.Config.TierOptions(), tier.WithLogger(p.Logger), tier.WithMetrics(p.Registerer))
	locker, err := tier.New(p.Filter, p.Authority, append(options, p.Options...)...)
	if err != nil {
		return LockerResult{}, err
	}
	log := p.Logger
	if log == nil {
		log = zap.NewNop()
	}
	p.Lifecycle.Append(fx.StartStopHook(
		func(ctx context.Context) error { return check(ctx, locker, log) },
		locker.Close,
	))
	return LockerResult{Locker: locker}, nil
}

// check asks the servers whether they can be relied on. A start fails for what
// needs a person, and not for an outage: restarting helps against neither, and
// the policies are there for the second.
func check(ctx context.Context, l *tier.Locker, log *zap.Logger) error {
	err := l.Check(ctx)
	switch {
	case err == nil:
		return nil
	case driver.ClassOf(err) == driver.ClassConfig:
		return errors.Join(err, l.Close(ctx)) // fx does not stop what did not start
	}
	log.Warn("tierlock starts without its authority; the first acquires ask again", zap.Error(err))
	return nil
}
