// SPDX-License-Identifier: Apache-2.0

package tierlockfx

import (
	"database/sql"
	"errors"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
)

// ConnectParams is what connections are made of.
type ConnectParams struct {
	fx.In

	Config    config.Config
	Logger    *zap.Logger `optional:"true"`
	Lifecycle fx.Lifecycle
}

// MySQLResult is the lock's pool.
type MySQLResult struct {
	fx.Out

	Pool *sql.DB `name:"tierlock"`
}

// ConnectMySQL opens the lock's own pool. It sends nothing.
func ConnectMySQL(p ConnectParams) (MySQLResult, error) {
	if p.Config.MySQL.DSN.Reveal() == "" {
		return MySQLResult{}, errors.New("tierlock: mysql.dsn is not set: set it, or provide a *sql.DB named \"tierlock\" instead of using Connect")
	}
	pool, err := mysqlauth.OpenPool(p.Config.MySQL.DSN.Reveal(), authorityOptions(p.Config, p.Logger)...)
	if err != nil {
		return MySQLResult{}, err
	}
	p.Lifecycle.Append(fx.StopHook(pool.Close))
	return MySQLResult{Pool: pool}, nil
}

// RedisResult is the client.
type RedisResult struct {
	fx.Out

	// Client is nil where no redis.url is set.
	Client redis.UniversalClient
}

// ConnectRedis opens a client to one server, or none. It sends nothing. For
// Cluster or Sentinel provide a client instead.
func ConnectRedis(p ConnectParams) (RedisResult, error) {
	if p.Config.Redis.URL.Reveal() == "" {
		return RedisResult{}, nil
	}
	client, err := redisfast.OpenClient(p.Config.Redis.URL.Reveal(), redisfast.WithTimeout(p.Config.Redis.Timeout))
	if err != nil {
		return RedisResult{}, err
	}
	p.Lifecycle.Append(fx.StopHook(client.Close))
	return RedisResult{Client: client}, nil
}
