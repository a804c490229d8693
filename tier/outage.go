// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

// outage is the error of the rung fail_closed. It says what is known of the latest
// outage when it is read, so that it can be made ahead.
type outage struct {
	policy *policy
	health *breaker.Health
}

func (o *outage) Error() string {
	s := fmt.Sprintf("%v: policy %q fails closed (%v) while %s is out", ErrUnavailable, o.policy.name, o.policy.Degrade, decidingName(o.policy))
	if err := o.health.LastErr(); err != nil {
		s += ": " + err.Error()
	}
	return s
}

func (o *outage) Is(target error) bool { return target == ErrUnavailable }

func failsClosed(err error) bool {
	_, closed := errors.AsType[*outage](err)
	return closed
}

// decidingName is the tier that decides who holds a policy's keys.
func decidingName(p *policy) string {
	if p.Tiers == TiersFilter {
		return "redis"
	}
	return "mysql"
}

// deciding is that tier's health.
func (l *Locker) deciding(p *policy) *breaker.Health {
	if p.Tiers == TiersFilter {
		return l.filterHealth
	}
	return l.authorityHealth
}

// Rung returns where the policy of a key stands on its ladder now: none while the
// deciding tier serves. It sends nothing.
func (l *Locker) Rung(key string) fallback.Rung { return l.rung(l.policies.Load().find(key)) }

// rung is where a policy's keys are on its ladder when nobody has just met a
// fault: None while the deciding tier serves.
func (l *Locker) rung(p *policy) fallback.Rung {
	health := l.deciding(p)
	state, since := health.State(), health.OpenSince()
	if state == breaker.Closed || since.IsZero() { // it may have closed between the two
		return fallback.None
	}
	return p.Degrade.Next(fallback.Situation{Health: state, LocalLeft: p.local.left(since, time.Now(), p.LocalFor)})
}

// watchTiers begins to judge the tiers by what their drivers tell, and says when
// they change.
func (l *Locker) watchTiers() (err error) {
	if l.authorityHealth, err = l.watchTier("mysql", l.authority); err != nil {
		return err
	}
	if l.filter != nil {
		l.filterHealth, err = l.watchTier("redis", l.filter)
	}
	if err == nil {
		l.metrics.watch(l)
	}
	return err
}

// stopWatching ends the probes. It may be called more than once.
func (l *Locker) stopWatching() {
	l.metrics.unwatch(l)
	l.authorityHealth.Close()
	if l.filterHealth != nil {
		l.filterHealth.Close()
	}
}

// watched is what both contracts have for it.
type watched interface {
	Observe(o driver.Observer)
	Ping(ctx context.Context) error
}

func (l *Locker) watchTier(name string, d watched) (*breaker.Health, error) {
	health, err := breaker.New(name, l.settings.breaker, d.Ping)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOption, err)
	}
	health.Listen(l.changed)
	d.Observe(func(c driver.Call) {
		if c.Op == "ping" {
			return // its answer is the probe's
		}
		health.Report(c.Err)
		if class := driver.ClassOf(c.Err); c.Err != nil && class != driver.ClassContention && class != driver.ClassCaller {
			l.log.Debug("call failed", zap.String("tier", name), zap.String("op", c.Op), zap.Duration("took", c.Took), zap.Error(c.Err))
		}
	})
	return health, nil
}

// changed is told of every change of either tier, in order and one at a time.
func (l *Locker) changed(c breaker.Change) {
	tier := zap.String("tier", c.Tier)
	switch {
	case c.To == breaker.Closed:
		l.log.Info("tier is back", tier)
		l.promoteAll()
	case c.Tier == "redis":
		l.log.Warn("redis is out; leases are granted by mysql alone, but for policies of redis alone",
			tier, zap.Stringer("breaker", c.To), zap.Error(c.Cause))
	default:
		l.log.Warn("mysql is out; each key's policy says what happens",
			tier, zap.Stringer("breaker", c.To), zap.Error(c.Cause))
	}
}
