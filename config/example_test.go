// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

func ExampleParse() {
	c, err := config.Parse("locks.yaml", []byte(`
namespace: shop
mysql: {dsn: "tierlock:${DB_PASSWORD}@tcp(127.0.0.1:3306)/tierlock"}
defaults: {wait: 1s}
policies:
  - {match: "payment/**", degrade: [retry, fail_closed]}
  - {match: "inventory/**", degrade: [retry, local, fail_closed], local_for: 30s}
`), config.WithEnviron([]string{"DB_PASSWORD=secret", "TIERLOCK_DEFAULTS_TTL=20s"}))
	fmt.Println(err)
	fmt.Println(c.MySQL.DSN)
	for _, p := range c.Policies {
		fmt.Println(p.Match, p.Degrade, p.TTL, p.Wait)
	}
	// Output:
	// <nil>
	// tierlock:***@tcp(127.0.0.1:3306)/tierlock
	// payment/** [retry, fail_closed] 20s 1s
	// inventory/** [retry, local, fail_closed] 20s 1s
}

func ExampleParse_refused() {
	_, err := config.Parse("locks.yaml", []byte(`
defaults: {tll: 10s}
policies:
  - match: "payment/**"
    wait: 100ms
  - match: "payment/refund/*"
    degrade: [local]
`), config.WithEnviron(nil))
	fmt.Println(err)
	// Output:
	// locks.yaml:2: defaults.tll: unknown field; did you mean ttl?
	// locks.yaml:5: policies[0].wait: 100ms: must be at least mysql.timeout (500ms): 500ms
	// locks.yaml:6: policies[1].match: payment/refund/*: is never reached: policy 0 (payment/** on line 4) comes first and matches the same keys
	// locks.yaml:7: policies[1].degrade: [local]: local_for is missing: say how long the rung local may last in an outage
}

func ExampleWatch() {
	c, err := config.Load("../deploy/tierlock.yaml", config.WithEnviron([]string{"TIERLOCK_MYSQL_PASSWORD=secret"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	log := zap.NewNop()
	locker, err := tier.New(tiertest.NewFilter(), tiertest.NewAuthority(), append(c.TierOptions(), tier.WithLogger(log))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan error)
	go func() {
		watched <- config.Watch(ctx, "../deploy/tierlock.yaml", c, func(c config.Config, err error) {
			if err == nil {
				err = locker.SetPolicies(c.TierPolicies()...)
			}
			if err != nil {
				log.Error("policies stay as they were", zap.Error(err))
			}
		})
	}()

	cancel()
	fmt.Println(<-watched, locker.Close(context.Background()))
	// Output: <nil> <nil>
}
