// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/mysqlauth"
)

// servers are started when a case first needs them, with default durability.
type servers struct {
	redis *stack.Server
	sql   map[string]*stack.Server
	etcd  *child
	// etcdAddr is where it listens.
	etcdAddr string
	dirs     []string
}

func (s *servers) stop() error {
	var errs []error
	if s.etcd != nil {
		_ = s.etcd.cmd.Process.Kill() // its directory goes with it
		_ = s.etcd.stop()
	}
	for _, one := range s.sql {
		errs = append(errs, one.Stop())
	}
	if s.redis != nil {
		errs = append(errs, s.redis.Stop())
	}
	for _, dir := range s.dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// versions are those of the servers that ran.
func (s *servers) versions() []string {
	var all []string
	if s.redis != nil {
		all = append(all, "Redis "+s.redis.Version())
	}
	for _, one := range s.sql {
		if name := fmt.Sprint(one.Engine(), " ", one.Version()); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// sqlArgs leave durability as it is.
func sqlArgs(e stack.Engine, pool string) []string {
	args := []string{"--max-connections=3000", "--innodb-buffer-pool-size=" + pool}
	if e == stack.MySQL {
		return append(args, "--innodb-redo-log-capacity=1G")
	}
	return append(args, "--innodb-log-file-size=512M")
}

func (s *servers) sqlServer(ctx context.Context, e stack.Engine, pool string) (*stack.Server, error) {
	name := fmt.Sprint(e, " ", pool)
	if one := s.sql[name]; one != nil {
		return one, nil
	}
	one, err := stack.SQL(ctx, e, stack.Options{Private: true, Args: sqlArgs(e, pool)})
	if err != nil {
		return nil, err
	}
	if s.sql == nil {
		s.sql = make(map[string]*stack.Server)
	}
	s.sql[name] = one
	return one, nil
}

func (s *servers) redisURL(ctx context.Context) (string, error) {
	if s.redis == nil {
		one, err := stack.Redis(ctx, stack.Options{Private: true})
		if err != nil {
			return "", err
		}
		s.redis = one
	}
	return s.redis.URL(), nil
}

func (s *servers) etcdEndpoint(ctx context.Context) (string, error) {
	if s.etcd == nil {
		dir, err := os.MkdirTemp("", "tierlock-bench-etcd-")
		if err != nil {
			return "", err
		}
		s.dirs = append(s.dirs, dir)
		if s.etcd, s.etcdAddr, err = spawn(ctx, task{Loop: "etcd", Lock: "etcd", Dir: dir}); err != nil {
			return "", err
		}
	}
	return s.etcdAddr, nil
}

// database makes a schema on a server, with the rows of so many keys.
func database(ctx context.Context, server *stack.Server, keys int) (*stack.Database, error) {
	d, err := server.NewDatabase(ctx, "bench")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("mysql", d.AdminDSN())
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	if err := mysqlauth.EnsureSchema(ctx, db); err != nil {
		return nil, err
	}
	// The numbers come out of a product of digits: the engines have no other way
	// in common that makes a million of them without a setting.
	var digits []string
	number := "0"
	for place, ten := 0, 1; ten < keys; place, ten = place+1, ten*10 {
		digits = append(digits, fmt.Sprintf("(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4"+
			" UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) d%d", place))
		number += fmt.Sprintf(" + %d * d%d.n", ten, place)
	}
	fill := func(prefix string) string {
		return fmt.Sprintf("INSERT INTO lease (lock_key, fence, holder, acquired_at, expires_at)"+
			" SELECT CONCAT('%s/%s', LPAD(i, 6, '0')), 1, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM (SELECT %s i FROM %s) v WHERE i < %d",
			namespace, prefix, number, strings.Join(digits, " CROSS JOIN "), keys)
	}
	if _, err := db.ExecContext(ctx, fill("key-")); err != nil {
		return nil, fmt.Errorf("fill the table: %w", err)
	}
	if keys <= warmKeys { // those of the latency case's round trips
		if _, err := db.ExecContext(ctx, fill("raw-key-")); err != nil {
			return nil, fmt.Errorf("fill the table: %w", err)
		}
	}
	_, err = db.ExecContext(ctx, insertTable)
	return d, err
}
