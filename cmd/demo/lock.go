// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The arms of the demo.
const (
	lockTierlock = "tierlock"
	lockNone     = "none"
	lockRedis    = "redis"
)

// acquireWait is how long a worker waits for a product before it looks for
// another one.
const acquireWait = time.Second

var (
	errHeld        = errors.New("held by another")
	errUnavailable = errors.New("lock unavailable")
	errLost        = errors.New("turn lost")
	errStale       = errors.New("the lease row refused the write")
	errUnfenced    = errors.New("the turn has no fence to write with")
)

// locker is all that workers know of a lock; they run the same code on every
// arm.
type locker interface {
	// acquire waits for the key. Errors are errHeld, errUnavailable, or the
	// context's.
	acquire(ctx context.Context, key string) (turn, error)
	// acquireAll waits for all of them, or returns an error and holds none. The
	// turns are in the order of the keys.
	acquireAll(ctx context.Context, keys []string) ([]turn, error)
	// rung is where the policy of the products stands on its ladder; empty on
	// an arm that has none.
	rung() string
	close(ctx context.Context) error
}

// turn is a key held.
type turn interface {
	// context ends when the turn is lost, not when acquire's context ends.
	context() context.Context
	// deadline is when the turn ends by itself; false where it never does.
	deadline() (time.Time, bool)
	level() level
	// confirm is called last before COMMIT. It answers errStale when the turn
	// is over, errUnfenced when it was granted without a fence, and nil on an arm that has no guard.
	confirm(ctx context.Context, tx *sql.Tx) error
	// release answers errLost when there was nothing left to release.
	release(ctx context.Context) error
}

func openLocker(ctx context.Context, s setup, shop *shop, metrics prometheus.Registerer) (locker, error) {
	switch s.Lock {
	case lockNone:
		return noLock{}, nil
	case lockRedis:
		return openRedisLock(ctx, s)
	case lockTierlock:
		return openTierlock(ctx, s, shop, metrics)
	}
	return nil, fmt.Errorf("no lock is called %q", s.Lock)
}

func lockKey(product int) string { return fmt.Sprintf("inventory/sku-%d", product) }

// oneByOne is acquireAll of a lock that has none: in the order of the keys, so that
// two of them cannot wait for each other.
func oneByOne(ctx context.Context, l locker, keys []string) ([]turn, error) {
	held := make([]turn, len(keys))
	for _, key := range slices.Sorted(slices.Values(keys)) {
		t, err := l.acquire(ctx, key)
		if err != nil {
			for _, h := range held {
				if h != nil {
					_ = h.release(context.WithoutCancel(ctx)) // else it runs out
				}
			}
			return nil, err
		}
		held[slices.Index(keys, key)] = t
	}
	return held, nil
}
