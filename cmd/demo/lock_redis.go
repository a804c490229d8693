// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

// redisLock is the control behind Redis alone, as good as such a lock gets: SET
// NX with a time to live and a token of its own, renewed while it is held, deleted
// only by its owner, with a wake-up and a poll for those who wait.
type redisLock struct {
	filter driver.Filter
	ttl    time.Duration
}

func openRedisLock(ctx context.Context, s setup) (locker, error) {
	filter, err := redisfast.Open(s.Redis, redisfast.WithPrefix(redisPrefix))
	if err != nil {
		return nil, err
	}
	if err := filter.Check(ctx); err != nil {
		_ = filter.Close(ctx) // the first error is the one to read
		return nil, err
	}
	return &redisLock{filter: filter, ttl: s.TTL}, nil
}

func (l *redisLock) acquireAll(ctx context.Context, keys []string) ([]turn, error) {
	return oneByOne(ctx, l, keys)
}

func (*redisLock) rung() string { return "" }

func (l *redisLock) close(ctx context.Context) error { return l.filter.Close(ctx) }

func (l *redisLock) acquire(ctx context.Context, key string) (turn, error) {
	waiting, cancel := context.WithTimeout(ctx, acquireWait)
	defer cancel()
	var wake <-chan struct{}
	for {
		// Flagged: nothing but the mark keeps others away.
		mark := driver.Mark{Token: driver.NewToken(), TTL: l.ttl, Flagged: true}
		sent := time.Now()
		state, err := l.filter.Mark(waiting, key, mark)
		switch {
		case ctx.Err() != nil:
			if err == nil && state.Ours {
				_ = l.filter.Clear(context.WithoutCancel(ctx), key, mark.Token, true) // else it runs out
			}
			return nil, ctx.Err()
		case waiting.Err() != nil && err != nil:
			return nil, errHeld
		case err != nil:
			return nil, fmt.Errorf("%w: %w", errUnavailable, err)
		case state.Ours:
			return l.hold(ctx, key, mark, sent), nil
		}
		if wake == nil {
			woken, stop := l.filter.Wakeups(key)
			defer stop()
			wake = woken
			continue // a release before the subscription sent no message here
		}
		poll := 50*time.Millisecond + rand.N(200*time.Millisecond)
		select {
		case <-wake:
		case <-time.After(min(poll, max(state.Left, time.Millisecond))):
		case <-waiting.Done():
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return nil, errHeld
		}
	}
}

func (l *redisLock) hold(ctx context.Context, key string, mark driver.Mark, sent time.Time) *redisTurn {
	t := &redisTurn{lock: l, key: key, mark: mark, until: sent.Add(l.ttl)}
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	t.renewing.Go(t.renew)
	return t
}

// redisTurn is a mark held.
type redisTurn struct {
	lock     *redisLock
	key      string
	mark     driver.Mark
	ctx      context.Context
	cancel   context.CancelCauseFunc
	renewing sync.WaitGroup

	mu    sync.Mutex
	until time.Time
}

func (t *redisTurn) context() context.Context { return t.ctx }
func (t *redisTurn) level() level             { return levelFilter }

func (t *redisTurn) deadline() (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until, true
}

// confirm has nothing to ask: this lock has no fence that a database could check.
func (t *redisTurn) confirm(context.Context, *sql.Tx) error { return nil }

// renew extends the mark at every third of its time, until the turn ends or is lost.
func (t *redisTurn) renew() {
	for {
		until, _ := t.deadline()
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(min(t.lock.ttl/3, time.Until(until))):
		}
		sent := time.Now()
		if !sent.Before(until) {
			t.cancel(errLost)
			return
		}
		asking, cancel := context.WithDeadline(t.ctx, until)
		state, err := t.lock.filter.Extend(asking, t.key, t.mark)
		cancel()
		switch {
		case err != nil: // nothing is known; the deadline stands
			select {
			case <-t.ctx.Done():
			case <-time.After(t.lock.ttl / 20):
			}
		case state.Ours:
			t.mu.Lock()
			t.until = sent.Add(t.lock.ttl)
			t.mu.Unlock()
		default:
			t.cancel(errLost)
			return
		}
	}
}

func (t *redisTurn) release(ctx context.Context) error {
	lost := t.lost()
	t.cancel(context.Canceled)
	t.renewing.Wait()
	if lost {
		return errLost
	}
	return t.lock.filter.Clear(ctx, t.key, t.mark.Token, true)
}

func (t *redisTurn) lost() bool { return errors.Is(context.Cause(t.ctx), errLost) }
