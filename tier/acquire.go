// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

const (
	// boundWithoutContext bounds calls that promise an answer to callers whose
	// context has no end, or has ended already (promise P10).
	boundWithoutContext = time.Second
	// retries is how often one acquire asks again after a fault of the
	// authority, before it gives up.
	retries = 2
)

// errWaitOver is the cause with which a wait ends by itself.
var errWaitOver = errors.New("wait is over")

// acquire is the path of every call, in the order it happens: the line inside
// the process, the filter, the authority, the lease.
func (l *Locker) acquire(ctx context.Context, key string, t terms) (*Lease, error) {
	full, err := l.fullKey(key)
	if err == nil {
		err = t.validate()
	}
	if err != nil {
		return nil, &Error{Op: "acquire", Key: key, Err: err}
	}
	if held, ok := ctx.Value(heldKey{l, full}).(*tenure); ok && ctx.Err() == nil {
		if lease := held.enter(); lease != nil {
			return lease, nil
		}
	}
	a := &attempt{
		locker: l, key: key, full: full, terms: t,
		mark: driver.Mark{Token: driver.NewToken(), TTL: t.ttl},
		poll: newPoll(t.ttl),
	}
	bound, unbind := l.bound(ctx, t.wait)
	defer unbind()
	lease, err := a.run(ctx, bound)
	if err != nil {
		return nil, &Error{Op: "acquire", Key: key, RetryAfter: a.left, Err: err}
	}
	return lease, nil
}

// bound joins all that can end a wait; the context's cause says which it was.
func (l *Locker) bound(ctx context.Context, wait time.Duration) (context.Context, func()) {
	if wait == 0 {
		wait = boundWithoutContext
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, stop := context.WithTimeoutCause(ctx, wait, errWaitOver)
	unhook := context.AfterFunc(l.closing, func() { cancel(ErrClosed) })
	return ctx, func() {
		unhook()
		stop()
		cancel(context.Canceled)
	}
}

// attempt is one Acquire on its way.
type attempt struct {
	locker *Locker
	key    string
	full   string
	terms  terms

	mark   driver.Mark
	marked bool // our mark stands, as far as we know: we are next in line

	refused  error         // the last refusal; nil before there was one
	failed   error         // the last fault of the authority, nil after any answer
	failures int           // faults of the authority so far
	left     time.Duration // how long the obstacle lasts, as the last refusal said
	look     bool          // read before the next claim: the last one was refused

	wake <-chan struct{} // nil until we wait for messages
	poll poll
}

func (a *attempt) run(caller, ctx context.Context) (*Lease, error) {
	l := a.locker
	if l.closing.Err() != nil {
		return nil, ErrClosed
	}
	turn, err := l.queues.enter(a.full, a.terms.wait > 0)
	if err != nil {
		return nil, err
	}
	lease, err := a.ahead(caller, ctx, turn)
	if err != nil {
		a.giveUp(turn)
		return nil, err
	}
	return lease, nil
}

// ahead waits to be the head of the line, and asks the servers until one of
// them or the caller ends it.
func (a *attempt) ahead(caller, ctx context.Context, turn *turn) (*Lease, error) {
	select {
	case <-turn.ready:
	case <-ctx.Done():
		a.refused = fmt.Errorf("%w: callers of this process were ahead", ErrHeld)
		return nil, a.ended(caller, ctx)
	}
	stop := func() {}
	defer func() { stop() }()
	for {
		lease, obstacle, err := a.step(caller, ctx, turn)
		if lease != nil || err != nil {
			return lease, err
		}
		if a.terms.wait == 0 {
			return nil, a.lastObstacle()
		}
		if a.wake == nil && a.locker.filter != nil && a.refused != nil {
			// The subscription's confirmation is a wake-up as well, so that
			// what was released before it is not missed (faults.md G1).
			a.wake, stop = a.locker.filter.Wakeups(a.full)
		}
		if !a.sleep(ctx, obstacle) {
			return nil, a.ended(caller, ctx)
		}
	}
}

// step asks both tiers once. It returns a lease, or how long the obstacle it
// met may last, or the error that ends the acquire.
func (a *attempt) step(caller, ctx context.Context, turn *turn) (*Lease, obstacle, error) {
	l := a.locker
	if err := l.ready.check(ctx, l); err != nil {
		return a.fault(caller, ctx, err)
	}
	pass, met := a.askFilter(ctx)
	switch pass {
	case passRefused:
		return nil, met, nil
	case passLook:
		a.look = true
	case passOpen, passOut:
	}
	if ctx.Err() != nil {
		return nil, obstacle{}, a.ended(caller, ctx)
	}
	if a.look {
		row, err := l.authority.Look(ctx, a.full)
		if err != nil {
			return a.fault(caller, ctx, err)
		}
		if row.Held {
			a.failed = nil
			return nil, a.refuse(&driver.Refusal{Left: row.Left, Holder: row.Holder}), nil
		}
	}
	grant, err := l.authority.Claim(ctx, driver.Claim{
		Key: a.full, TTL: a.terms.ttl, Holder: a.terms.holder, Block: 1,
	})
	if refusal, ok := errors.AsType[*driver.Refusal](err); ok {
		a.failed = nil
		return nil, a.refuse(refusal), nil
	}
	if err != nil {
		return a.fault(caller, ctx, err)
	}
	return a.granted(caller, ctx, turn, grant, pass)
}

// granted turns a grant into a lease, unless it comes too late to be of use or
// a flagged mark says that others work without the authority.
func (a *attempt) granted(caller, ctx context.Context, turn *turn, g driver.Grant, pass passage) (*Lease, obstacle, error) {
	l := a.locker
	if !a.marked && pass != passOut && l.filter != nil {
		state, err := l.filter.Overwrite(ctx, a.full, a.mark)
		switch {
		case err != nil && ctx.Err() != nil:
			l.releaseBehind(a.full, g)
			a.marked = true // perhaps
			return nil, obstacle{}, a.ended(caller, ctx)
		case err != nil:
			l.filterIn.failed(err)
		case state.Ours:
			a.marked = true
		default:
			l.releaseBehind(a.full, g)
			return nil, a.refuseMark(state), nil
		}
	}
	deadline := g.Until.Add(-a.terms.margin())
	if !time.Now().Before(deadline) {
		l.releaseBehind(a.full, g)
		return a.fault(caller, ctx, fmt.Errorf("the grant arrived with its time used up"))
	}
	level := LevelAuthority
	if a.marked && pass != passOut {
		level = LevelFull
		l.refusals.forget(a.full)
	}
	tenure := newTenure(caller, a, turn, g, level)
	if tenure == nil {
		l.releaseBehind(a.full, g)
		return nil, obstacle{}, ErrClosed
	}
	l.log.Debug("lease granted", zap.String("key", l.shown(a.key)), zap.Stringer("level", level), zap.Uint64("fence", g.Fence))
	return &Lease{tenure: tenure}, obstacle{}, nil
}

// giveUp takes our mark away, if we may have one, and only then lets the next
// of this process go ahead, who would be refused by it.
func (a *attempt) giveUp(turn *turn) {
	if !a.marked {
		turn.leave()
		return
	}
	turn.ending()
	a.locker.behind.run(func() {
		a.locker.clear(a.full, a.mark.Token)
		turn.leave()
	})
}

// refuse notes that the authority has another holder, or a busy row.
func (a *attempt) refuse(r *driver.Refusal) obstacle {
	a.refused = fmt.Errorf("%w: mysql: %w", ErrHeld, r)
	a.failures = 0
	a.look = true
	if r.Busy {
		a.left = busyRetry()
		return obstacle{atMost: a.left}
	}
	a.left = r.Left
	return obstacle{atMost: r.Left}
}

// fault decides what an error of the authority means for this acquire: the end
// of it, or another try after a moment.
func (a *attempt) fault(caller, ctx context.Context, err error) (*Lease, obstacle, error) {
	if ctx.Err() != nil {
		if a.failed == nil && driver.ClassOf(err) != driver.ClassCaller {
			a.failed = err
		}
		return nil, obstacle{}, a.ended(caller, ctx)
	}
	a.failed = err
	switch driver.ClassOf(err) {
	case driver.ClassContention:
		a.failed = nil
		return nil, a.refuse(&driver.Refusal{Busy: true}), nil
	case driver.ClassConfig:
		return nil, obstacle{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case driver.ClassTransient, driver.ClassDown, driver.ClassUnknown, driver.ClassCaller:
		a.failures++
		if a.failures > retries {
			return nil, obstacle{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	return nil, obstacle{atMost: faultRetry(), deaf: true}, nil
}

// lastObstacle is the error of a single look.
func (a *attempt) lastObstacle() error {
	if a.failed != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, a.failed)
	}
	return a.refused
}

// ended says why the wait ended: the caller's doing, the locker's, or time. A
// wait that ended with a tier silent is not "held".
func (a *attempt) ended(caller, ctx context.Context) error {
	obstacle := a.refused
	if a.failed != nil {
		obstacle = fmt.Errorf("%w: %w", ErrUnavailable, a.failed)
	}
	switch {
	case caller.Err() != nil:
		return errors.Join(caller.Err(), obstacle)
	case errors.Is(context.Cause(ctx), ErrClosed):
		return ErrClosed
	case obstacle == nil:
		return fmt.Errorf("%w: no answer within the wait", ErrUnavailable)
	}
	return obstacle
}
