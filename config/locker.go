// SPDX-License-Identifier: Apache-2.0

package config

import (
	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier"
)

// TierPolicies returns the policies as [tier.WithPolicies] and
// [tier.Locker.SetPolicies] take them.
func (c Config) TierPolicies() []tier.Policy {
	var all []tier.Policy
	for _, p := range c.Policies {
		all = append(all, tier.Policy{
			Match:    p.Match,
			Tiers:    p.Tiers,
			Degrade:  p.Degrade,
			Attempts: p.Attempts,
			Backoff:  p.Backoff,
			LocalFor: p.LocalFor,
			Options: []tier.AcquireOption{
				tier.WithTTL(p.TTL), tier.WithWait(p.Wait), tier.WithMaxHold(p.MaxHold),
				tier.WithHandoffs(p.Handoffs), tier.WithHandoffFor(p.HandoffFor), tier.WithGiveWay(p.GiveWay),
			},
		})
	}
	return all
}

// BreakerSettings returns when a tier counts as out.
func (c Config) BreakerSettings() breaker.Settings {
	return breaker.Settings{
		Consecutive: c.Breaker.Consecutive,
		ProbeEvery:  c.Breaker.ProbeEvery,
		GlobalAfter: c.Breaker.GlobalAfter,
		Ratio:       c.Breaker.Ratio,
		MinCalls:    c.Breaker.MinCalls,
		MinSpan:     c.Breaker.MinSpan,
	}
}

// TierOptions returns all that a locker is built with: namespace, terms, drain,
// breaker and policies.
func (c Config) TierOptions() []tier.Option {
	return []tier.Option{
		tier.WithNamespace(c.Namespace),
		tier.WithTTL(c.Defaults.TTL),
		tier.WithWait(c.Defaults.Wait),
		tier.WithMaxHold(c.Defaults.MaxHold), tier.WithHandoffs(c.Defaults.Handoffs),
		tier.WithHandoffFor(c.Defaults.HandoffFor), tier.WithGiveWay(c.Defaults.GiveWay),
		tier.WithMaxWaiters(c.Defaults.MaxWaiters),
		tier.WithDrain(c.Drain),
		tier.WithBreaker(c.BreakerSettings()),
		tier.WithPolicies(c.TierPolicies()...),
	}
}
