// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
)

// pool is what the peers on MySQL get: a connection for every worker as far as
// that helps, and no round trip to prepare a statement.
func pool(t task, size int) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(t.DSN)
	if err != nil {
		return nil, err
	}
	cfg.InterpolateParams = true
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

const (
	duplicateKey = 1062
	deadlock     = 1213
	lockWait     = 1205
)

func code(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// insertTable is what insert and naive lock with.
const insertTable = `CREATE TABLE IF NOT EXISTS insertlock (
	lock_key VARBINARY(320) PRIMARY KEY, holder VARBINARY(64) NOT NULL, expires_at DATETIME(6) NOT NULL) ENGINE=InnoDB`

// insertLock is the lock that everybody writes first: a row is the lock.
type insertLock struct {
	db      *sql.DB
	backoff time.Duration
}

func newInsert(t task) (contestant, error) {
	db, err := pool(t, min(t.Workers, 256))
	return &insertLock{db, t.Backoff}, err
}

func (l *insertLock) Acquire(ctx context.Context, worker int, key string) (held, error) {
	return poll(ctx, l.backoff, func() (held, error) { return l.Try(ctx, worker, key) })
}

func (l *insertLock) Try(ctx context.Context, worker int, key string) (held, error) {
	holder := fmt.Sprint("worker-", worker)
	_, err := l.db.ExecContext(ctx,
		"INSERT INTO insertlock (lock_key, holder, expires_at) VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 10 SECOND)", key, holder)
	switch code(err) {
	case 0:
	case duplicateKey, deadlock, lockWait:
		return nil, errRefused
	}
	if err != nil {
		return nil, err
	}
	return release(func(ctx context.Context) error {
		for {
			_, err := l.db.ExecContext(ctx, "DELETE FROM insertlock WHERE lock_key = ? AND holder = ?", key, holder)
			if c := code(err); c != deadlock && c != lockWait {
				return err
			}
		}
	}), nil
}

func (l *insertLock) Close() error { return l.db.Close() }

// naiveLock is the two tiers without anything else: SET NX, INSERT, DELETE, DEL.
type naiveLock struct {
	rows    *insertLock
	redis   *redis.Client
	backoff time.Duration
}

func newNaive(t task) (contestant, error) {
	client, err := redisClient(t)
	if err != nil {
		return nil, err
	}
	db, err := pool(t, min(t.Workers, 256))
	return &naiveLock{&insertLock{db, t.Backoff}, client, t.Backoff}, err
}

func (l *naiveLock) Acquire(ctx context.Context, worker int, key string) (held, error) {
	return poll(ctx, l.backoff, func() (held, error) { return l.Try(ctx, worker, key) })
}

func (l *naiveLock) Try(ctx context.Context, worker int, key string) (held, error) {
	ok, err := l.redis.SetNX(ctx, key, worker, ttl).Result()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errRefused
	}
	row, err := l.rows.Try(ctx, worker, key)
	if err != nil {
		return nil, errors.Join(err, l.redis.Del(ctx, key).Err())
	}
	return release(func(ctx context.Context) error {
		return errors.Join(row.Release(ctx), l.redis.Del(ctx, key).Err())
	}), nil
}

func (l *naiveLock) Close() error { return errors.Join(l.rows.Close(), l.redis.Close()) }

// getLock is GET_LOCK on a connection that is the holder's for as long.
type getLock struct{ db *sql.DB }

func newGetLock(t task) (contestant, error) {
	db, err := pool(t, t.Workers)
	return &getLock{db}, err
}

func (l *getLock) Acquire(ctx context.Context, _ int, key string) (held, error) {
	return l.get(ctx, key, 60)
}

func (l *getLock) Try(ctx context.Context, _ int, key string) (held, error) {
	return l.get(ctx, key, 0)
}

func (l *getLock) get(ctx context.Context, key string, seconds int) (held, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var got sql.NullBool
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", key, seconds).Scan(&got)
	if err == nil && !got.Bool {
		err = errRefused
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return release(func(ctx context.Context) error {
		_, err := conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", key)
		return errors.Join(err, conn.Close())
	}), nil
}

func (l *getLock) Close() error { return l.db.Close() }
