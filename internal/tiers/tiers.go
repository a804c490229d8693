// SPDX-License-Identifier: Apache-2.0

// Package tiers gives a test both tiers on real servers: an empty lease
// database of its own, with the least privileged user, and a part of Redis's
// key space. It is for tests of what the tiers do together.
package tiers

import (
	"context"
	"database/sql"
	"time"

	_ "github.com/go-sql-driver/mysql" // the admin's pool
	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier/driver"
)

// Tiers are both tiers of one test.
type Tiers struct {
	Redis    *stack.Server
	Database *stack.Database
	// Admin may do everything in the database; it goes through no proxy.
	Admin *sql.DB
	// Prefix is that of the test's keys in Redis.
	Prefix string

	client *redis.Client
	nodes  int
}

// New makes both tiers on the shared servers of this process's tests.
func New(tb stack.TB, engine stack.Engine) *Tiers {
	tb.Helper()
	return On(tb, stack.SharedRedis(tb), stack.SharedSQL(tb, engine))
}

// On makes both tiers on servers of the test's choice.
func On(tb stack.TB, redisServer, sqlServer *stack.Server) *Tiers {
	tb.Helper()
	s := &Tiers{Redis: redisServer, Database: sqlServer.CreateDatabase(tb)}
	s.Prefix = s.Database.Name + ":"
	var err error
	if s.Admin, err = sql.Open("mysql", s.Database.AdminDSN()); err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() { _ = s.Admin.Close() })
	if err := mysqlauth.EnsureSchema(tb.Context(), s.Admin); err != nil {
		tb.Fatalf("%v", err)
	}
	options, err := redis.ParseURL(s.Redis.URL())
	if err != nil {
		tb.Fatalf("%v", err)
	}
	s.client = redis.NewClient(options)
	tb.Cleanup(func() { _ = s.client.Close() })
	return s
}

// bound is for the package's own questions, which may outlive a test's context.
func bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

// Held counts the leases that stand by the server's clock.
func (s *Tiers) Held(tb stack.TB) int {
	tb.Helper()
	return s.Count(tb, "SELECT COUNT(*) FROM lease WHERE token IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)")
}

// Count asks the database, as admin, for one number.
func (s *Tiers) Count(tb stack.TB, query string, args ...any) int {
	tb.Helper()
	ctx, cancel := bound()
	defer cancel()
	var n int
	if err := s.Admin.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return n
}

// Exec runs a statement as admin.
func (s *Tiers) Exec(tb stack.TB, statement string, args ...any) {
	tb.Helper()
	ctx, cancel := bound()
	defer cancel()
	if _, err := s.Admin.ExecContext(ctx, statement, args...); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}

// Revoke takes every lease away, as an operator does.
func (s *Tiers) Revoke(tb stack.TB) {
	tb.Helper()
	token := driver.NewToken()
	s.Exec(tb, "UPDATE lease SET token = ? WHERE token IS NOT NULL", token[:])
}

// Marks counts the test's keys in Redis.
func (s *Tiers) Marks(tb stack.TB) int {
	tb.Helper()
	return len(s.marks(tb))
}

func (s *Tiers) marks(tb stack.TB) []string {
	tb.Helper()
	ctx, cancel := bound()
	defer cancel()
	var keys []string
	scan := s.client.Scan(ctx, 0, s.Prefix+"*", 1000).Iterator()
	for scan.Next(ctx) {
		keys = append(keys, scan.Val())
	}
	if err := scan.Err(); err != nil {
		tb.Fatalf("scan: %v", err)
	}
	return keys
}

// Flush makes Redis forget the test's keys.
func (s *Tiers) Flush(tb stack.TB) {
	tb.Helper()
	keys := s.marks(tb)
	if len(keys) == 0 {
		return
	}
	ctx, cancel := bound()
	defer cancel()
	if err := s.client.Del(ctx, keys...).Err(); err != nil {
		tb.Fatalf("flush: %v", err)
	}
}
