// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// namespace is the one of tierlock's keys.
const namespace = "bench"

// tierlock is the product with its defaults.
type tierlock struct {
	locker *tier.Locker
	asked  *refusals
}

func newTierlock(t task) (contestant, error) {
	filter, err := redisfast.Open(t.Redis)
	if err != nil {
		return nil, err
	}
	return openTierlock(t, filter)
}

func newAuthorityAlone(t task) (contestant, error) { return openTierlock(t, nil) }

func openTierlock(t task, filter driver.Filter) (contestant, error) {
	authority, err := mysqlauth.Open(t.DSN)
	if err != nil {
		return nil, err
	}
	l := &tierlock{asked: &refusals{Authority: authority}}
	l.locker, err = tier.New(filter, l.asked, tier.WithNamespace(namespace), tier.WithTTL(t.ttl()), tier.WithWait(time.Minute))
	return l, err
}

func (l *tierlock) Acquire(ctx context.Context, _ int, key string) (held, error) {
	lease, err := l.locker.Acquire(ctx, key)
	if err != nil {
		return nil, err // not a nil *Lease in an interface
	}
	return lease, nil
}

func (l *tierlock) Try(ctx context.Context, _ int, key string) (held, error) {
	lease, err := l.locker.TryAcquire(ctx, key)
	switch {
	case errors.Is(err, tier.ErrHeld):
		return nil, errRefused
	case err != nil:
		return nil, err
	}
	return lease, nil
}

func (l *tierlock) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return l.locker.Close(ctx)
}

// refusals counts the questions to the authority that did not end in a grant:
// what refused attempts cost it.
type refusals struct {
	*mysqlauth.Authority
	n atomic.Int64
}

func (r *refusals) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := r.Authority.Claim(ctx, c)
	if err != nil {
		// At most: the update, the read-back, and both once more around an insert.
		r.n.Add(4)
	}
	return g, err
}

func (r *refusals) Look(ctx context.Context, key string) (driver.Row, error) {
	r.n.Add(1)
	return r.Authority.Look(ctx, key)
}
