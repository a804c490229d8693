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
	return ls.join(context.WithoutCancel(ls[0].ctx))
}

// join makes a context of ctx that carries all leases, and ends with each.
func (ls Leases) join(ctx context.Context) (context.Context, context.CancelFunc) {
	for _, lease := range ls {
		ctx = lease.carriedBy(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	unhook := make([]func() bool, len(ls))
	for i, lease := range ls {
		unhook[i] = context.AfterFunc(lease.ctx, func() { end(context.Cause(lease.ctx)) })
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
// Errors are those of [Locker.Acquire], naming the key that stood in the way;
// after any of them nothing is held.
func (l *Locker) AcquireAll(ctx context.Context, keys ...string) (Leases, error) {
	named := distinct(keys)
	if len(named) == 0 {
		return nil, &Error{Op: "acquire", Err: optionError("no keys")}
	}
	for _, key := range named {
		if _, err := l.fullKey(key); err != nil {
			return nil, &Error{Op: "acquire", Key: key, Err: err}
		}
	}
	sorted := slices.Sorted(slices.Values(named))
	end := time.Now().Add(l.settings.terms.wait)

	// Nobody may want them: ask for all at once, and keep what is a prefix.
	held, err := l.tryPrefix(ctx, sorted)
	for _, key := range sorted[len(held):] {
		if err != nil {
			break
		}
		t := l.settings.terms
		t.wait = max(0, time.Until(end))
		var lease *Lease
		if lease, err = l.acquire(ctx, key, t); err == nil {
			held = append(held, lease)
		}
	}
	if err != nil {
		// The error that matters is why not all were granted; releases go on
		// behind, on a context of their own.
		_ = held.Release(context.WithoutCancel(ctx))
		return nil, err
	}
	return held.orderedBy(named), nil
}

// tryPrefix tries all keys at once, keeps the longest prefix that was granted
// and gives the rest back: to hold a later key while waiting for an earlier one
// is how deadlocks are made. It returns an error only when waiting is no use.
func (l *Locker) tryPrefix(ctx context.Context, keys []string) (Leases, error) {
	leases := make(Leases, len(keys))
	errs := make([]error, len(keys))
	var tries sync.WaitGroup
	for i, key := range keys {
		tries.Go(func() {
			t := l.settings.terms
			t.wait = 0
			leases[i], errs[i] = l.acquire(ctx, key, t)
		})
	}
	tries.Wait()
	prefix := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if prefix < 0 {
		return leases, nil
	}
	var rest Leases
	for _, lease := range leases[prefix:] {
		if lease != nil {
			rest = append(rest, lease)
		}
	}
	_ = rest.Release(context.WithoutCancel(ctx)) // they were never handed out
	if err := errs[prefix]; ctx.Err() != nil || !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable) {
		return leases[:prefix:prefix], err
	}
	return leases[:prefix:prefix], nil
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

func distinct(keys []string) []string {
	seen := make(map[string]bool, len(keys))
	var named []string
	for _, key := range keys {
		if !seen[key] {
			seen[key] = true
			named = append(named, key)
		}
	}
	return named
}

// AcquireAny acquires one of the keys, the first that is free, starting
// anywhere among them so that callers spread; when none is free it waits for
// all of them. Errors are those of [Locker.Acquire].
func (l *Locker) AcquireAny(ctx context.Context, keys ...string) (*Lease, error) {
	candidates := distinct(keys)
	if len(candidates) == 0 {
		return nil, &Error{Op: "acquire", Err: optionError("no keys")}
	}
	end := time.Now().Add(l.settings.terms.wait)
	candidates = spread(candidates)
	t := l.settings.terms
	t.wait = 0
	for _, key := range candidates {
		lease, err := l.acquire(ctx, key, t)
		if err == nil || !errors.Is(err, ErrHeld) {
			return lease, err
		}
	}
	if t.wait = time.Until(end); t.wait <= 0 {
		return nil, &Error{Op: "acquire", Key: candidates[0], Err: ErrHeld}
	}
	return l.acquireFirst(ctx, candidates, t)
}

// acquireFirst waits for every key, keeps the first grant and lets the others
// go.
func (l *Locker) acquireFirst(ctx context.Context, keys []string, t terms) (*Lease, error) {
	type answer struct {
		lease *Lease
		err   error
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(keys))
	for _, key := range keys {
		l.behind.run(func() {
			lease, err := l.acquire(waiting, key, t)
			answers <- answer{lease, err}
		})
	}
	var errs error
	for i := range keys {
		a := <-answers
		if a.err == nil {
			cancel()
			rest := len(keys) - 1 - i
			l.behind.run(func() {
				for range rest {
					if late := <-answers; late.lease != nil {
						_ = late.lease.Release(context.Background()) // it was never handed out
					}
				}
			})
			return a.lease, nil
		}
		errs = a.err
	}
	return nil, errs
}
