// SPDX-License-Identifier: Apache-2.0

package tierlockfx

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// FilterParams is what the filter is made of.
type FilterParams struct {
	fx.In

	Config config.Config
	// Client may be absent, or nil, where every policy says tiers: mysql.
	Client  redis.UniversalClient `optional:"true"`
	Logger  *zap.Logger           `optional:"true"`
	Options []redisfast.Option    `optional:"true"`
}

// FilterResult is the filter.
type FilterResult struct {
	fx.Out

	// Filter is nil where there is no client: the locker then asks MySQL alone.
	Filter driver.Filter
}

// NewFilter makes the filter. It sends nothing.
func NewFilter(p FilterParams) (FilterResult, error) {
	if p.Client == nil {
		return FilterResult{}, needsNoRedis(p.Config)
	}
	filter, err := redisfast.New(p.Client, append([]redisfast.Option{
		redisfast.WithTimeout(p.Config.Redis.Timeout), redisfast.WithLogger(p.Logger),
	}, p.Options...)...)
	if err != nil {
		return FilterResult{}, err
	}
	return FilterResult{Filter: filter}, nil
}

// needsNoRedis returns why a config needs Redis; nil when it does not.
func needsNoRedis(c config.Config) error {
	if len(c.Policies) == 0 {
		return errors.New("tierlock: no redis.UniversalClient: provide one, set redis.url and use Connect, or say tiers: mysql in a policy for all keys")
	}
	for _, p := range c.TierPolicies() {
		if p.Tiers != tier.TiersAuthority {
			return fmt.Errorf("tierlock: no redis.UniversalClient, and policy %q wants tiers: %v: provide one, set redis.url and use Connect, or say tiers: mysql", p.Match, p.Tiers)
		}
	}
	return nil
}
