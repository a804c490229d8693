// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// redisClient is what the peers on go-redis get: its defaults, with as many
// connections as they can use.
func redisClient(t task) (*redis.Client, error) {
	o, err := redis.ParseURL(t.Redis)
	if err != nil {
		return nil, err
	}
	o.PoolSize = min(t.Workers, 64) // more of them make it slower here
	o.PoolTimeout = time.Minute
	return redis.NewClient(o), nil
}

type redislockLock struct {
	client *redis.Client
	lock   *redislock.Client
	wait   *redislock.Options
}

func newRedislock(t task) (contestant, error) {
	client, err := redisClient(t)
	if err != nil {
		return nil, err
	}
	return &redislockLock{client, redislock.New(client), &redislock.Options{RetryStrategy: redislock.LinearBackoff(t.Backoff)}}, nil
}

func (l *redislockLock) obtain(ctx context.Context, key string, o *redislock.Options) (held, error) {
	lock, err := l.lock.Obtain(ctx, key, ttl, o)
	switch {
	case errors.Is(err, redislock.ErrNotObtained):
		return nil, errRefused
	case err != nil:
		return nil, err
	}
	return lock, nil
}

func (l *redislockLock) Acquire(ctx context.Context, _ int, key string) (held, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // without, its wait is one TTL
	defer cancel()
	return l.obtain(ctx, key, l.wait)
}

func (l *redislockLock) Try(ctx context.Context, _ int, key string) (held, error) {
	return l.obtain(ctx, key, nil)
}

func (l *redislockLock) Close() error { return l.client.Close() }

type redsyncLock struct {
	client  *redis.Client
	lock    *redsync.Redsync
	backoff time.Duration
}

func newRedsync(t task) (contestant, error) {
	client, err := redisClient(t)
	if err != nil {
		return nil, err
	}
	return &redsyncLock{client, redsync.New(redsyncgoredis.NewPool(client)), t.Backoff}, nil
}

func (l *redsyncLock) Acquire(ctx context.Context, _ int, key string) (held, error) {
	m := l.lock.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithRetryDelay(l.backoff), redsync.WithTries(math.MaxInt32))
	return redsyncHeld(m, m.LockContext(ctx))
}

func (l *redsyncLock) Try(ctx context.Context, _ int, key string) (held, error) {
	m := l.lock.NewMutex(key, redsync.WithExpiry(ttl))
	return redsyncHeld(m, m.TryLockContext(ctx))
}

func redsyncHeld(m *redsync.Mutex, err error) (held, error) {
	var taken *redsync.ErrTaken
	switch {
	case errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed):
		return nil, errRefused
	case err != nil:
		return nil, err
	}
	return release(func(ctx context.Context) error {
		_, err := m.UnlockContext(ctx)
		return err
	}), nil
}

func (l *redsyncLock) Close() error { return l.client.Close() }

type rueidisLock struct{ locker rueidislock.Locker }

func newRueidislock(t task) (contestant, error) {
	o, err := rueidis.ParseURL(t.Redis)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: o, KeyValidity: ttl, KeyMajority: 1, NoLoopTracking: true,
	})
	return &rueidisLock{locker}, err
}

func (l *rueidisLock) Acquire(ctx context.Context, _ int, key string) (held, error) {
	_, cancel, err := l.locker.WithContext(ctx, key)
	return rueidisHeld(cancel, err)
}

func (l *rueidisLock) Try(ctx context.Context, _ int, key string) (held, error) {
	_, cancel, err := l.locker.TryWithContext(ctx, key)
	return rueidisHeld(cancel, err)
}

func rueidisHeld(cancel context.CancelFunc, err error) (held, error) {
	switch {
	case errors.Is(err, rueidislock.ErrNotLocked):
		return nil, errRefused
	case err != nil:
		return nil, err
	}
	return release(func(context.Context) error {
		cancel()
		return nil
	}), nil
}

func (l *rueidisLock) Close() error {
	l.locker.Close()
	return nil
}
