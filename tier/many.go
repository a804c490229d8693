// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Leases are several leases acquired together, in the order of the keys that
// were asked for, each key once.
type Leases []*Lease

// Release releases all of them at once and joins the errors.
func (ls Leases) Release(ctx context.Context) error {
	errs := make([]error, len(ls))
	var releases sync.WaitGroup
	for i, lease := range ls {
		releases.Go(func() { errs[i] = lease.Release(ctx) })
	}
	releases.Wait()
	return errors.Join(errs...)
}

// Context returns a context with the values of the first lease's that carries
// all leases for re-entry, and ends with the first of them that ends, with its
// cause. cancel must be called to let go of what watches them.
func (ls Leases) Context() (ctx context.Context, cancel context.CancelFunc) {
	if len(ls) == 0 {
		return context.WithCancel(context.Background())
	}
	return ls.join(context.WithoutCancel(ls[0].Context()))
}

// join makes a context of ctx that carries all leases, and ends with each.
func (ls Leases) join(ctx context.Context) (context.Context, context.CancelFunc) {
	for _, lease := range ls {
		ctx = lease.carriedBy(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	unhook := make([]func() bool, len(ls))
	for i, lease := range ls {
		held := lease.Context()
		unhook[i] = context.AfterFunc(held, func() { end(context.Cause(held)) })
	}
	return ctx, func() {
		for _, stop := range unhook {
			stop()
		}
		end(context.Canceled)
	}
}

// DoAll acquires all keys, runs f and releases, as [Locker.Do] does for one.
func (l *Locker) DoAll(ctx context.Context, keys []string, f func(context.Context, Leases) error) error {
	leases, err := l.AcquireAll(ctx, keys...)
	if err != nil {
		return err
	}
	return within(ctx, leases, func(ctx context.Context) error { return f(ctx, leases) })
}

// AcquireAll acquires all keys or none, in any order of the caller's, within
// one wait. Callers that hold nothing else cannot deadlock: what has to be
// waited for is waited for in the order of the keys' bytes. Keys named twice
// count once, and keys held through ctx are entered again. The leases come in
// the order in which their keys were named first.
//
// Errors are those of [Locker.Acquire], naming the key that stood in the way,
// and [ErrLost] or [ErrMaxHold] where one ended while the next was waited for.
// After any of them nothing is held.
func (l *Locker) AcquireAll(ctx context.Context, keys ...string) (Leases, error) {
	began := l.metrics.clock()
	leases, err := l.acquireAll(ctx, keys)
	if err != nil {
		l.told(began, nil, err)
	}
	for _, lease := range leases {
		l.told(began, lease, nil)
	}
	return leases, err
}

func (l *Locker) acquireAll(ctx context.Context, keys []string) (Leases, error) {
	named, err := l.distinct(keys)
	if err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(named))
	end, once := l.shared(sorted)

	// Nobody may want them: ask for all at once, and keep what is a prefix.
	held, err := l.tryPrefix(ctx, sorted, end)
	refusal := err
	if worthWaiting(err) && !once && ctx.Err() == nil && time.Now().Before(end) {
		err = nil
	}
	for _, key := range sorted[len(held):] {
		if err != nil {
			break
		}
		var lease *Lease
		if lease, err = l.acquire(ctx, key, ask{end: end}); err == nil {
			held = append(held, lease)
		}
	}
	if err == nil {
		err = held.firstLost() // one may have ended while the next was waited for
	}
	if err = outOfTime(err, refusal); err != nil {
		l.giveBack(held)
		return nil, err
	}
	return held.orderedBy(named), nil
}

func (ls Leases) firstLost() error {
	for _, lease := range ls {
		if err := lease.Err(); err != nil {
			return &Error{Op: "acquire", Key: lease.key, Level: lease.level, Err: errors.Unwrap(err)}
		}
	}
	return nil
}

// outOfTime prefers an earlier refusal to the news that the shared wait ended
// before the last server's answer: contention is no outage.
func outOfTime(err, refusal error) error {
	if errors.Is(err, errNoAnswer) && errors.Is(refusal, ErrHeld) {
		return refusal
	}
	return err
}

func worthWaiting(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable)
}

// tryPrefix tries all keys at once, keeps the longest prefix that was granted
// and gives the rest back: to hold a later key while waiting for an earlier one
// is how deadlocks are made. Its error is what the key after the prefix met.
func (l *Locker) tryPrefix(ctx context.Context, keys []string, end time.Time) (Leases, error) {
	leases := make(Leases, len(keys))
	errs := make([]error, len(keys))
	var tries sync.WaitGroup
	for i, key := range keys {
		tries.Go(func() { leases[i], errs[i] = l.acquire(ctx, key, ask{end: end, once: true}) })
	}
	tries.Wait()
	prefix := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if prefix < 0 {
		return leases, nil
	}
	rest := slices.DeleteFunc(slices.Clone(leases[prefix:]), func(lease *Lease) bool { return lease == nil })
	l.giveBack(rest)
	return leases[:prefix:prefix], errs[prefix]
}

// giveBack releases, behind the caller, what was never handed out. A handle on
// a tenure that the caller holds besides goes at once: the answer belongs to
// the release of the caller's own.
func (l *Locker) giveBack(leases Leases) {
	for _, lease := range leases {
		if !lease.leaveEarly() {
			l.behind.run(func() { _ = lease.Release(context.Background()) })
		}
	}
}

// leaveEarly takes a handle that was never handed out back, if it is not the
// last: that needs no server.
func (l *Lease) leaveEarly() bool {
	l.mu.Lock()
	defer l.unlock()
	if l.handles < 2 {
		return false
	}
	l.handles--
	l.released.Store(true)
	return true
}

func (ls Leases) orderedBy(keys []string) Leases {
	byKey := make(map[string]*Lease, len(ls))
	for _, lease := range ls {
		byKey[lease.key] = lease
	}
	ordered := make(Leases, len(keys))
	for i, key := range keys {
		ordered[i] = byKey[key]
	}
	return ordered
}

// distinct returns the keys of a call, each once, if all of them are valid.
func (l *Locker) distinct(keys []string) ([]string, error) {
	if len(keys) == 0 {
		return nil, &Error{Op: "acquire", Err: optionError("no keys")}
	}
	seen := make(map[string]bool, len(keys))
	var named []string
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, &Error{Op: "acquire", Key: key, Err: err}
		}
		if !seen[key] {
			seen[key] = true
			named = append(named, key)
		}
	}
	return named, nil
}
