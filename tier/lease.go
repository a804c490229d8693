// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

// leaseState is where a lease stands. It passes, under the lease's mutex, from
//
//	held --(deadline, server's no, Close)--> lost --Release--> released
//	held --Release--> released
//
// and never back.
type leaseState uint8

const (
	leaseHeld leaseState = iota
	leaseLost
	leaseReleased
)

// Lease is a granted key. It is renewed in the background, every third of its
// TTL, until it is released or lost. All methods are safe for concurrent use.
//
// That a lease is held says what was true when the server last answered. What
// must not be done twice belongs into a guarded write (package idempotency).
type Lease struct {
	locker *Locker
	turn   *turn
	key    string
	full   string
	terms  terms
	level  Level
	grant  driver.Grant
	mark   driver.Mark

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	state    leaseState
	cause    error     // why it was lost
	until    time.Time // local time before which it does not expire
	timer    *time.Timer
	marks    markWriter
	renewing renewalPlan
}

// newLease returns nil when the locker was closed meanwhile.
func newLease(caller context.Context, a *attempt, turn *turn, g driver.Grant, level Level) *Lease {
	lease := &Lease{
		locker: a.locker, turn: turn, key: a.key, full: a.full, terms: a.terms,
		level: level, grant: g, mark: a.mark, until: g.Until,
	}
	lease.ctx, lease.cancel = context.WithCancelCause(context.WithoutCancel(caller))
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if !a.locker.renewer.add(lease) {
		return nil
	}
	lease.timer = time.AfterFunc(time.Until(lease.deadline()), lease.expire)
	return lease
}

// Key returns the key as it was given to Acquire.
func (l *Lease) Key() string { return l.key }

// Fence returns the number of this tenure, larger than that of every earlier
// tenure of the key; 0 on LevelFilter and LevelLocal. It never changes.
func (l *Lease) Fence() uint64 { return l.grant.Fence }

// Level returns which tiers stand behind the lease. It never changes.
func (l *Lease) Level() Level { return l.level }

// Holder returns the name the lease was asked for with.
func (l *Lease) Holder() string { return l.terms.holder }

// Tenure returns what a guarded write proves.
func (l *Lease) Tenure() driver.Tenure {
	return driver.Tenure{Key: l.full, Token: l.grant.Token, Fence: l.grant.Fence, Table: l.grant.Table}
}

// Prove is Tenure for a write that is about to prove it: it fails once Release
// has begun, however the row looks by then. It sends nothing and does not look
// at the deadline, which is the server's to judge. It is for package
// idempotency.
func (l *Lease) Prove() (driver.Tenure, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == leaseReleased {
		return driver.Tenure{}, l.error("prove", fmt.Errorf("%w: its Release has begun", ErrLost))
	}
	return l.Tenure(), nil
}

// Context carries the values of the context given to Acquire, not its deadline
// or its end. It ends with cause [ErrLost] when the lease is lost, [ErrClosed]
// when the locker was closed, and [context.Canceled] when it is released.
func (l *Lease) Context() context.Context { return l.ctx }

// Done is Context().Done, except that it looks at the clock first: in a process
// that was stopped it is closed as soon as somebody asks.
func (l *Lease) Done() <-chan struct{} {
	_ = l.Err()
	return l.ctx.Done()
}

// Err returns nil while the lease is held, the cause of its end when it was
// lost, and context.Canceled once it was released. It looks at the clock, not
// at a timer.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == leaseHeld && !time.Now().Before(l.deadline()) {
		l.lose(errDeadline)
	}
	switch l.state {
	case leaseLost:
		return l.cause
	case leaseReleased:
		return context.Canceled
	case leaseHeld:
	}
	return context.Cause(l.ctx) // nil, or ErrClosed
}

// Deadline returns the local time, with its monotonic reading, at which the
// lease counts as lost unless a renewal moves it: its expiry less a margin of a
// tenth of the TTL, at least 50 ms.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline()
}

func (l *Lease) deadline() time.Time { return l.until.Add(-l.terms.margin()) }

// errDeadline is how a lease ends without a word from the server.
var errDeadline = fmt.Errorf("%w: its deadline passed without a renewal", ErrLost)

// expire is the deadline's timer.
func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != leaseHeld {
		return
	}
	if left := time.Until(l.deadline()); left > 0 {
		l.timer.Reset(left)
		return
	}
	l.lose(errDeadline)
}

// lose ends a held lease that nobody released: the holder learns it at once,
// and the next in line goes ahead. The caller holds the mutex.
func (l *Lease) lose(cause error) {
	if l.state != leaseHeld {
		return
	}
	l.state = leaseLost
	l.cause = l.error("hold", cause)
	l.timer.Stop()
	l.cancel(l.cause)
	l.locker.renewer.remove(l)
	l.clearMark()
	l.turn.leave()
	if !errors.Is(cause, ErrClosed) {
		l.locker.log.Warn("lease lost", zap.String("key", l.key), zap.Uint64("fence", l.grant.Fence), zap.Error(cause))
	}
}

// Verify asks the authority whether the lease is still ours; nil means that it
// was when the server looked. A no ends the lease. It returns within ctx, or
// within a second where ctx has no end. Errors: [ErrLost], [ErrUnavailable]
// when nothing is known, the context's.
func (l *Lease) Verify(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, boundWithoutContext)
	defer cancel()
	row, err := l.locker.authority.Look(ctx, l.full)
	if err != nil {
		return l.error("verify", unanswered(ctx, err))
	}
	if row.Held && row.Token == l.grant.Token {
		return nil
	}
	reason := driver.LossFreed
	switch {
	case row.Token == l.grant.Token:
		reason = driver.LossExpired
	case !row.Token.IsZero():
		reason = driver.LossTaken
	}
	return l.end(&driver.Loss{Reason: reason, Fence: row.Fence})
}

// Renew asks for a full TTL from now. It is needed only by who stops the
// process or the clock on purpose: renewal is automatic. It returns within ctx,
// or within a second where ctx has no end. Errors are those of Verify. After
// Release it does nothing and returns nil.
func (l *Lease) Renew(ctx context.Context) error {
	l.mu.Lock()
	state, cause, until := l.state, l.cause, l.until
	l.mu.Unlock()
	switch state {
	case leaseReleased:
		return nil
	case leaseLost:
		return cause
	case leaseHeld:
	}
	ctx, cancel := context.WithTimeout(ctx, boundWithoutContext)
	defer cancel()
	for {
		answer := l.locker.authority.Renew(ctx, []driver.Renewal{{Key: l.full, Token: l.grant.Token, TTL: l.terms.ttl, Until: until}})[0]
		if busy, ok := errors.AsType[*driver.Refusal](answer.Err); ok && busy.Busy && pause(ctx, busyRenewal) {
			continue
		}
		if err := l.renewed(answer); err != nil {
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

// Release gives the key back. The first call answers: nil when the row was
// freed, whatever had ended the lease's context; [ErrLost] when the authority
// had it no longer; the context's error when that is not known at the bound,
// which is ctx or a second: the release then goes on in the background until
// the key is free or expired. A ctx that has ended already counts as none, so
// that a deferred Release works after a disconnect. Later calls return nil.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	before := l.state
	cause := l.cause
	if before == leaseReleased {
		l.mu.Unlock()
		return nil
	}
	l.state = leaseReleased
	l.timer.Stop()
	l.cancel(context.Canceled)
	until := l.until
	l.locker.renewer.remove(l)
	l.mu.Unlock()

	if loss, ok := errors.AsType[*driver.Loss](cause); ok {
		l.locker.renewer.gone(l)
		return l.error("release", fmt.Errorf("%w: %w", ErrLost, loss))
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, boundWithoutContext)
	defer cancel()
	err := l.locker.authority.Release(ctx, driver.Release{Key: l.full, Token: l.grant.Token, Until: until})
	l.turn.ending()
	l.locker.behind.run(func() {
		l.clearAfterRelease()
		l.turn.leave()
	})
	l.locker.renewer.gone(l)
	if loss, ok := errors.AsType[*driver.Loss](err); ok {
		err = fmt.Errorf("%w: %w", ErrLost, loss)
	} else if err != nil {
		err = fmt.Errorf("not known yet whether the key is free; the release goes on, and the lease expires in %v at the latest: %w",
			time.Until(until).Round(time.Millisecond), err)
	}
	return l.error("release", err)
}

// end ends the lease by the server's word.
func (l *Lease) end(loss *driver.Loss) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == leaseReleased {
		return nil // what the row looks like is our own release's doing
	}
	l.lose(fmt.Errorf("%w: %w", ErrLost, loss))
	return l.cause
}

func (l *Lease) error(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Key: l.key, Level: l.level, Err: err}
}

// unanswered says that nothing is known, and keeps the context's error where
// that is the reason.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("%w: no answer in time", ErrUnavailable), ctx.Err())
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
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
