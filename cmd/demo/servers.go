// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
)

// servers are what the shop stands on: started by the demo, or given.
type servers struct {
	redis    *stack.Server // nil when -redis names one
	sql      *stack.Server // nil when -mysql names one
	database *stack.Database

	redisURL string
	dsn      string
	adminDSN string // may create tables
}

// openServers starts what was not given. say is told before each step.
func openServers(ctx context.Context, o options, say func(string)) (s *servers, err error) {
	s = &servers{redisURL: o.redis, dsn: o.mysql, adminDSN: o.mysql}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if o.redis != "" {
		if _, err := redis.ParseURL(o.redis); err != nil {
			return s, errors.New("-redis is not a redis:// URL") // its text may hold a password
		}
	} else if err := s.startRedis(ctx, o, say); err != nil {
		return s, err
	}
	if o.mysql != "" {
		cfg, err := mysql.ParseDSN(o.mysql)
		if err != nil || cfg.DBName == "" {
			return s, errors.New("-mysql is not user:password@tcp(host:port)/database")
		}
		return s, nil
	}
	return s, s.startSQL(ctx, o, say)
}

func (s *servers) startRedis(ctx context.Context, o options, say func(string)) error {
	say("starting redis...")
	server, err := stack.Redis(ctx, stack.Options{})
	if err != nil {
		return err
	}
	s.redis, s.redisURL = server, server.URL()
	if (o.redisFault() || o.story) && !server.Ours() {
		return errors.New("the fault would break a Redis that the demo did not start: unset TIERLOCK_REDIS_URL")
	}
	return nil
}

func (s *servers) startSQL(ctx context.Context, o options, say func(string)) (err error) {
	say("starting " + o.engine + "...")
	engine := stack.MariaDB
	if o.engine == "mysql" {
		engine = stack.MySQL
	}
	if s.sql, err = stack.SQL(ctx, engine, stack.Options{}); err != nil {
		return err
	}
	if (o.mysqlFault() || o.story) && !s.sql.Ours() {
		return errors.New("the fault would break a MySQL that the demo did not start: unset TIERLOCK_MYSQL_DSN")
	}
	if s.database, err = s.sql.NewDatabase(ctx, "demo"); err != nil {
		return err
	}
	s.dsn, s.adminDSN = s.database.DSN(), s.database.AdminDSN()
	return nil
}

// close stops what was started, and leaves nothing in a server that was not.
func (s *servers) close(ctx context.Context) error {
	var errs []error
	if s.database != nil && !s.sql.Ours() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		errs = append(errs, s.database.Drop(ctx))
	}
	for _, server := range []*stack.Server{s.sql, s.redis} {
		if server != nil {
			errs = append(errs, server.Stop())
		}
	}
	return errors.Join(errs...)
}
