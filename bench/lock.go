// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// contestant is a lock as the cases see it. Its methods are safe for
// concurrent use.
type contestant interface {
	// Acquire waits for the key until ctx ends. worker numbers the caller's
	// goroutine.
	Acquire(ctx context.Context, worker int, key string) (held, error)
	// Try asks once. It answers errRefused when another has the key.
	Try(ctx context.Context, worker int, key string) (held, error)
	Close() error
}

// held is a key that somebody has.
type held interface {
	Release(ctx context.Context) error
}

// release is a held in the form of a function.
type release func(ctx context.Context) error

func (r release) Release(ctx context.Context) error { return r(ctx) }

var errRefused = errors.New("held by another")

// ttl is the same for all: nobody loses a key by its end.
const ttl = 10 * time.Second

// maker is how a process of a measurement gets its lock.
type maker struct {
	name string
	make func(t task) (contestant, error)
	// polls says that it has a back-off between its looks at a key, of which it
	// gets the best.
	polls bool
}

// makers are the locks by name. authority is tierlock without Redis: it is no
// peer, but what the filter is measured against.
var makers = []maker{
	{name: "tierlock", make: newTierlock},
	{name: "authority", make: newAuthorityAlone},
	{name: "redislock", make: newRedislock, polls: true},
	{name: "redsync", make: newRedsync, polls: true},
	{name: "rueidislock", make: newRueidislock},
	{name: "getlock", make: newGetLock},
	{name: "insert", make: newInsert, polls: true},
	{name: "naive", make: newNaive, polls: true},
	{name: "etcd", make: newEtcd},
}

func lockNames() []string {
	names := make([]string, len(makers))
	for i, m := range makers {
		names[i] = m.name
	}
	return names
}

func makerOf(name string) maker {
	return makers[slices.IndexFunc(makers, func(m maker) bool { return m.name == name })]
}

// backoffs are what a lock that polls is tried with.
var backoffs = []time.Duration{500 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}

// poll asks until it is not refused, or ctx ends. The pauses have a jitter, as
// the peers' own have, or should have.
func poll(ctx context.Context, backoff time.Duration, try func() (held, error)) (held, error) {
	for {
		h, err := try()
		if !errors.Is(err, errRefused) {
			return h, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(backoff/2 + rand.N(backoff)):
		}
	}
}
