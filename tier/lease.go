// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// Lease is a handle on a granted key. The lease is renewed in the background,
// every third of its TTL, until its last handle is released or it is lost.
// Acquire under a lease's own context returns another handle on the same
// tenure. All methods are safe for concurrent use.
//
// That a lease is held says what was true when the server last answered. What
// must not be done twice belongs into a guarded write (package idempotency).
type Lease struct {
	*tenure
	released  atomic.Bool
	reentered bool // a further handle on a tenure that was held
}

// Key returns the key as it was given to Acquire.
func (l *Lease) Key() string { return l.key }

// Fence returns the number of this tenure, larger than that of every earlier
// tenure of the key; 0 on LevelFilter and LevelLocal. It never changes.
func (l *Lease) Fence() uint64 { return l.fence }

// Level returns which tiers stand behind the lease. It never changes.
func (l *Lease) Level() Level { return l.level }

// Holder returns the name the lease was asked for with.
func (l *Lease) Holder() string { return l.terms.holder }

// Tenure returns what a guarded write proves.
func (l *Lease) Tenure() driver.Tenure {
	return driver.Tenure{Key: l.full, Token: l.proof, Fence: l.fence, Table: l.table}
}

// Context carries the values of the context given to Acquire, not its deadline
// or its end; pass it on to re-enter. It ends with cause [ErrLost] when the
// lease is lost, [ErrMaxHold] when it was held too long, [ErrClosed] when the
// locker was closed, and [context.Canceled] when its last handle is released.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.context()
}

// Done is Context().Done, except that it looks at the clock first: in a process
// that was stopped it is closed as soon as somebody asks.
func (l *Lease) Done() <-chan struct{} {
	_ = l.err()
	return l.Context().Done()
}

// Err returns nil while the lease is held, the cause with which its context
// ended before it was released, and context.Canceled once this handle or the
// last one was. It looks at the clock, not at a timer.
func (l *Lease) Err() error {
	if l.released.Load() {
		return context.Canceled
	}
	return l.err()
}

// Deadline returns the local time, with its monotonic reading, at which the
// lease counts as lost unless a renewal moves it: its expiry less a margin of a
// tenth of the TTL, at least 50 ms.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline()
}

// Verify asks what stands behind the lease whether it is still ours: the
// authority; Redis on LevelFilter; this process on LevelLocal, until the
// authority is back. Nil means that it was at that moment. A no ends the lease. It returns within ctx, or
// within a second where ctx has no end. Errors: [ErrLost], [ErrUnavailable]
// when nothing is known, the context's; context.Canceled after Release.
func (l *Lease) Verify(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return l.error("verify", err)
	}
	ctx, cancel := context.WithTimeout(ctx, boundWithoutContext)
	defer cancel()
	by, token := l.standing()
	row, err := by.Look(ctx, l.full)
	if err != nil {
		return l.error("verify", unanswered(ctx, err))
	}
	if row.Held && row.Token == token {
		return nil
	}
	if now, _ := l.standing(); now != by {
		return l.Verify(ctx) // promoted meanwhile, once
	}
	l.end(lossOf(row, token))
	return l.error("verify", l.Err())
}

// Renew asks for a full TTL from now. It is needed only by who stops the
// process or the clock on purpose: renewal is automatic. It returns within ctx,
// or within a second where ctx has no end. Errors are those of Verify, and
// those with which the lease's context ended. After Release it does nothing and
// returns nil.
func (l *Lease) Renew(ctx context.Context) error {
	if l.released.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, boundWithoutContext)
	defer cancel()
	for {
		l.mu.Lock()
		state, cause, until, by, token := l.state, l.cause, l.until, l.by, l.token
		l.mu.Unlock()
		switch state {
		case tenureEnding:
			return nil
		case tenureCalledOff, tenureLost:
			return cause
		case tenureHeld:
		}
		answer := by.Renew(ctx, []driver.Renewal{{Key: l.full, Token: token, TTL: l.ttl, Until: until}})[0]
		if busy(answer.Err) && pause(ctx, busyRenewal) {
			l.locker.metrics.renewal(false, answer.Err)
			continue
		}
		if err := l.renewed(by, answer); err != nil {
			return err
		}
		if answer.Err != nil {
			if errors.Is(l.Err(), context.Canceled) {
				return nil // released meanwhile: what the server said is our own doing
			}
			return l.error("renew", unanswered(ctx, answer.Err))
		}
		return nil
	}
}

// Release gives this handle back, and the key with the last one. The first call
// answers: nil when the row was freed, whatever had ended the lease's context;
// [ErrLost] when the authority had it no longer; the context's error when that
// is not known at the bound, which is ctx or a second: the release then goes on
// in the background until the key is free or expired. A ctx that has ended
// already counts as none, so that a deferred Release works after a disconnect.
// After Close it sends nothing and answers [ErrClosed]. Later calls, and those
// of handles that are not the last, return nil.
func (l *Lease) Release(ctx context.Context) error {
	if l.released.Swap(true) {
		return nil
	}
	last, loss := l.leave()
	if !last {
		return nil
	}
	l.locker.behind.begin()
	defer l.locker.behind.done()
	defer l.locker.renewer.forget(l.holding)
	if loss != nil {
		l.locker.metrics.release(releaseLost)
		return l.error("release", fmt.Errorf("%w: %w", ErrLost, loss))
	}
	select {
	case <-l.locker.closed:
		l.locker.metrics.release(releaseClosed)
		return l.error("release", fmt.Errorf("%w: the lease was left to expire", ErrClosed))
	default:
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, boundWithoutContext)
	defer cancel()
	if !l.unpinned(ctx) {
		l.locker.behind.run(func() {
			l.unpinned(context.Background()) // whoever pinned it sees to an end
			ctx, cancel := context.WithTimeout(context.Background(), boundWithoutContext)
			defer cancel()
			_ = l.free(ctx)
		})
		return l.error("release", fmt.Errorf("a guarded write is under way, and the key is not free before its end; the release goes on: %w", ctx.Err()))
	}
	return l.free(ctx)
}

// free asks for the row to be freed, by whatever stands behind the tenure.
func (l *Lease) free(ctx context.Context) error {
	// A renewal under way may still move the expiry, by a TTL from now.
	until := time.Now().Add(l.terms.ttl)
	by, token := l.standing()
	err := by.Release(ctx, driver.Release{Key: l.full, Token: token, Until: until, MinHold: l.terms.minHold})
	l.turn.ending()
	l.mu.Lock()
	if _, lost := errors.AsType[*driver.Loss](err); lost && l.freeing {
		err = nil // its own transaction did
	}
	l.marks.keep = err == nil
	l.finishMark()
	l.unlock()
	l.countRelease(err)
	if loss, ok := errors.AsType[*driver.Loss](err); ok {
		err = fmt.Errorf("%w: %w", ErrLost, loss)
	} else if err != nil {
		err = fmt.Errorf("not known yet whether the key is free; the release goes on, and the lease %s: %w", expiry(until), err)
	}
	return l.error("release", err)
}

// expiry says when a lease that is not renewed is over at the latest.
func expiry(until time.Time) string {
	if left := time.Until(until).Round(time.Millisecond); left > 0 {
		return fmt.Sprintf("expires in %v at the latest", left)
	}
	return "has expired"
}

// unanswered says that nothing is known, and keeps the context's error where
// that is the reason.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("%w: no answer in time", ErrUnavailable), ctx.Err())
	}
	return unavailable(err)
}

// busy reports whether a transaction has the row locked.
func busy(err error) bool {
	refusal, ok := errors.AsType[*driver.Refusal](err)
	return ok && refusal.Busy
}

// pause waits and reports whether ctx still runs.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
