// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
)

// A file refuses what the drivers would refuse, and nothing else: each bound is
// met from both sides.
func TestParse_boundsAreTheDrivers(t *testing.T) {
	t.Parallel()
	mysql := func(c config.Config) error {
		db, err := mysqlauth.OpenPool("u:p@tcp(127.0.0.1:1)/lock", mysqlauth.WithTimeout(c.MySQL.Timeout),
			mysqlauth.WithMaxOpenConns(c.MySQL.MaxOpenConns), mysqlauth.WithRetention(c.Sweep.Retention))
		if err == nil {
			require.NoError(t, db.Close())
		}
		return err
	}
	redis := func(c config.Config) error {
		client, err := redisfast.OpenClient("redis://127.0.0.1:1/0", redisfast.WithTimeout(c.Redis.Timeout))
		if err == nil {
			require.NoError(t, client.Close())
		}
		return err
	}
	duration := func(in func(*config.Config) *time.Duration) func(*config.Config, int64) {
		return func(c *config.Config, n int64) { *in(c) = time.Duration(n) }
	}
	mysqlTimeout := duration(func(c *config.Config) *time.Duration { return &c.MySQL.Timeout })
	redisTimeout := duration(func(c *config.Config) *time.Duration { return &c.Redis.Timeout })
	retention := duration(func(c *config.Config) *time.Duration { return &c.Sweep.Retention })
	conns := func(c *config.Config, n int64) { c.MySQL.MaxOpenConns = int(n) }
	for _, b := range []struct {
		name, field string
		set         func(*config.Config, int64)
		good, bad   int64
		open        func(config.Config) error
	}{
		{"few connections", "mysql.max_open_conns", conns, 7, 6, mysql},
		{"a short MySQL timeout", "mysql.timeout", mysqlTimeout, 10e6, 10e6 - 1, mysql},
		{"a long MySQL timeout", "mysql.timeout", mysqlTimeout, 60e9, 60e9 + 1, mysql},
		{"a short retention", "sweep.retention", retention, 60e9, 60e9 - 1, mysql},
		{"a short Redis timeout", "redis.timeout", redisTimeout, 1e6, 1e6 - 1, redis},
		{"a long Redis timeout", "redis.timeout", redisTimeout, 1e9, 1e9 + 1, redis},
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			c.Defaults.TTL, c.Defaults.Wait = 3*time.Minute, 3*time.Minute
			b.set(&c, b.good)
			require.NoError(t, c.Validate())
			require.NoError(t, b.open(c))
			b.set(&c, b.bad)
			require.ErrorContains(t, c.Validate(), b.field)
			require.Error(t, b.open(c))
		})
	}
}
