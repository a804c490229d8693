// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"time"
)

// AcquireAny acquires one of the keys, the first that is free, starting
// anywhere among them so that callers spread; when none is free it waits for
// all of them. It stands in no line: who waits for one of the keys alone comes
// before it. Errors are those of [Locker.Acquire].
func (l *Locker) AcquireAny(ctx context.Context, keys ...string) (*Lease, error) {
	began := l.metrics.clock()
	lease, err := l.acquireAny(ctx, keys)
	l.told(began, lease, err)
	return lease, err
}

func (l *Locker) acquireAny(ctx context.Context, keys []string) (*Lease, error) {
	candidates, err := l.distinct(keys)
	if err != nil {
		return nil, err
	}
	end, once := l.shared(candidates)
	c := &choice{locker: l, keys: spread(candidates), end: end}
	lease, err := c.try(ctx, c.keys)
	switch {
	case lease != nil || err != nil:
		return lease, err
	case once:
		return nil, c.why
	}
	return c.wait(ctx)
}

// choice is one AcquireAny on its way. It asks for one key at a time: two grants
// would be one too many, and each costs the key a turn.
type choice struct {
	locker *Locker
	keys   []string
	end    time.Time
	why    error // what was in the way; a fault says more than contention
	faults int
}

// try looks at each of the keys once. It returns a lease, or the error that ends
// the call, or neither.
func (c *choice) try(ctx context.Context, keys []string) (*Lease, error) {
	closed := 0
	for _, key := range keys {
		lease, err := c.locker.acquire(ctx, key, ask{end: c.end, once: true})
		if err == nil {
			return lease, nil
		}
		err = outOfTime(err, c.why)
		if c.why == nil || !errors.Is(err, ErrHeld) {
			c.why = err
		}
		switch {
		case ctx.Err() != nil || !worthWaiting(err):
			return nil, err
		case errors.Is(err, ErrHeld):
			c.faults = 0
			continue
		}
		if failsClosed(err) {
			closed++
			continue
		}
		p := c.locker.policies.Load().find(key)
		if c.faults++; c.faults > p.attempts() {
			return nil, err
		}
		pause(ctx, min(p.pause(), time.Until(c.end)))
	}
	if closed == len(c.keys) {
		return nil, c.why
	}
	return nil, nil
}

// wait tries what it is told of, and all keys when it has heard nothing for a
// while.
func (c *choice) wait(ctx context.Context) (*Lease, error) {
	l := c.locker
	watch, err := l.watch(c.keys)
	if err != nil {
		return nil, &Error{Op: "acquire", Key: c.keys[0], Err: err}
	}
	defer watch.stop()
	defer l.waitsFor(c.keys)()
	bound, unbind := l.bound(ctx, time.Until(c.end))
	defer unbind()
	poll := poll{factor: 1, cap: pollCap}
	timer := time.NewTimer(poll.next())
	defer timer.Stop()
	next := c.keys // one may have become free before it was watched
	for {
		if lease, err := c.try(ctx, next); lease != nil || err != nil {
			return lease, err
		}
		select {
		case <-bound.Done():
			return nil, c.ended(ctx)
		case <-watch.told:
			next = watch.take()
		case <-timer.C:
			next = c.keys
			timer.Reset(poll.next())
		}
	}
}

// ended says why the wait ended.
func (c *choice) ended(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return &Error{Op: "acquire", Key: c.keys[0], Err: errors.Join(ctx.Err(), c.why)}
	case c.locker.closing.Err() != nil:
		return &Error{Op: "acquire", Key: c.keys[0], Err: ErrClosed}
	}
	return c.why
}
