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
	// retries is how often one acquire asks again after faults of the authority
	// in a row, before it gives up.
	retries = 2
)

// acquire is the path of every call, in the order it happens: re-entry, the
// line inside the process, the filter, the authority, the lease.
func (l *Locker) acquire(ctx context.Context, key string, t terms) (*Lease, error) {
	full, err := l.fullKey(key)
	if err == nil {
		err = t.validate()
	}
	if err != nil {
		return nil, &Error{Op: "acquire", Key: key, Err: err}
	}
	if t.wait == 0 {
		t = t.lookOnce()
	}
	if lease := l.reenter(ctx, full); lease != nil {
		return lease, nil
	}
	a := &attempt{
		locker: l, caller: ctx, key: key, full: full, terms: t,
		mark: driver.Mark{Token: driver.NewToken(), TTL: t.ttl},
		poll: newPoll(t.ttl),
	}
	bound, unbind := l.bound(ctx, t.wait)
	defer unbind()
	lease, err := a.run(bound)
	if err != nil {
		return nil, &Error{Op: "acquire", Key: key, RetryAfter: a.retryAfter(), Err: err}
	}
	return lease, nil
}

// bound joins all that can end a wait: the caller, the locker, and time.
func (l *Locker) bound(ctx context.Context, wait time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, stop := context.WithTimeout(ctx, wait)
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
	caller context.Context
	key    string
	full   string
	terms  terms
	turn   *turn

	mark     driver.Mark
	marked   bool // our mark stood when the filter last answered: we are next in line
	mayStand bool // a mark of ours may stand: it has to be cleared in the end

	met      obstacle  // what the last step met
	failures int       // faults of the authority in a row
	asked    time.Time // since when the authority owes an answer; zero when it does not
	look     bool      // read before the next claim: the last one was refused

	wake <-chan struct{} // nil until we wait for messages
	poll poll
}

func (a *attempt) run(ctx context.Context) (*Lease, error) {
	l := a.locker
	// Close waits for us, so that what we are granted is freed before it closes
	// the drivers. It sets closing before it waits.
	l.behind.begin()
	defer l.behind.done()
	if l.closing.Err() != nil {
		return nil, ErrClosed
	}
	var err error
	if a.turn, err = l.queues.enter(a.full, !a.terms.once); err != nil {
		return nil, err
	}
	lease, err := a.ahead(ctx)
	if err != nil {
		a.giveUp()
		return nil, err
	}
	return lease, nil
}

// ahead waits to be the head of the line, and asks the servers until one of
// them or the caller ends it.
func (a *attempt) ahead(ctx context.Context) (*Lease, error) {
	if !a.turn.isHead() {
		head := a.turn.await(ctx)
		a.met = a.turn.inTheWay()
		if !head {
			return nil, a.ended(ctx)
		}
	}
	stop := func() {}
	defer func() { stop() }()
	for {
		lease, err := a.step(ctx)
		if lease != nil || err != nil {
			return lease, err
		}
		if a.terms.once {
			return nil, a.met.err()
		}
		if a.wake == nil && a.locker.filter != nil && a.met.refusal != nil {
			// The subscription's confirmation is a wake-up as well, so that
			// what was released before it is not missed (faults.md G1).
			a.wake, stop = a.locker.filter.Wakeups(a.full)
		}
		if !a.sleep(ctx) {
			return nil, a.ended(ctx)
		}
	}
}

// step asks both tiers once. It returns a lease, or the error that ends the
// acquire, or neither: then met says what was in the way.
func (a *attempt) step(ctx context.Context) (*Lease, error) {
	l := a.locker
	if err := l.ready.check(ctx, l); err != nil {
		return nil, a.fault(ctx, err)
	}
	pass := a.askFilter(ctx)
	switch pass {
	case passRefused:
		return nil, nil
	case passLook:
		a.look = true
	case passOpen, passOut:
	}
	if ctx.Err() != nil {
		return nil, a.ended(ctx)
	}
	a.asked = time.Now()
	if a.look {
		row, err := l.authority.Look(ctx, a.full)
		if err != nil {
			return nil, a.fault(ctx, err)
		}
		if row.Held {
			a.refused(&driver.Refusal{Left: row.Left, Holder: row.Holder})
			return nil, nil
		}
	}
	grant, err := l.authority.Claim(ctx, driver.Claim{
		Key: a.full, TTL: a.terms.ttl, Holder: a.terms.holder, Block: 1,
	})
	if refusal, ok := errors.AsType[*driver.Refusal](err); ok {
		a.refused(refusal)
		return nil, nil
	}
	if err != nil {
		return nil, a.fault(ctx, err)
	}
	a.asked = time.Time{}
	return a.granted(ctx, grant, pass)
}

// granted turns a grant into a lease, unless it comes too late to be of use or
// a flagged mark says that others work without the authority.
func (a *attempt) granted(ctx context.Context, g driver.Grant, pass passage) (*Lease, error) {
	l := a.locker
	if !a.marked && pass != passOut && l.filter != nil {
		a.mayStand = true
		state, err := l.filter.Overwrite(ctx, a.full, a.mark)
		switch {
		case err != nil && ctx.Err() != nil:
			l.releaseBehind(driver.Release{Key: a.full, Token: g.Token, Until: g.Until})
			return nil, a.ended(ctx)
		case err != nil:
			l.filterIn.failed(err)
		case state.Ours:
			a.marked = true
		default:
			a.mayStand = false
			l.releaseBehind(driver.Release{Key: a.full, Token: g.Token, Until: g.Until})
			a.markedByOther(state)
			return nil, nil
		}
	}
	if deadline := g.Until.Add(-a.terms.margin()); !time.Now().Before(deadline) {
		l.releaseBehind(driver.Release{Key: a.full, Token: g.Token, Until: g.Until})
		return nil, a.fault(ctx, errLateGrant)
	}
	level := LevelAuthority
	if a.marked && pass != passOut {
		level = LevelFull
		l.refusals.forget(a.full)
	}
	a.turn.report(nil)
	tenure := newTenure(a, g, level)
	if tenure == nil {
		l.releaseBehind(driver.Release{Key: a.full, Token: g.Token, Until: g.Until})
		return nil, ErrClosed
	}
	l.log.Debug("lease granted", zap.String("key", l.shown(a.key)), zap.Stringer("level", level), zap.Uint64("fence", g.Fence))
	return &Lease{tenure: tenure}, nil
}

// silent reports that the authority has owed an answer for longer than one that
// is well takes: a fifth of its timeout.
func (a *attempt) silent() bool {
	return !a.asked.IsZero() && time.Since(a.asked) >= a.locker.authority.Timeout()/5
}

// errNoAnswer is all that is known when the wait ends before the first answer.
var errNoAnswer = errors.New("no answer within the wait")

var errLateGrant = errors.New("the grant arrived with its time used up")

// giveUp takes our mark away, if we may have one, and lets the next of this
// process go ahead.
func (a *attempt) giveUp() {
	if !a.mayStand {
		a.turn.leave()
		return
	}
	a.turn.ending()
	a.locker.behind.run(func() { a.locker.clearAndLeave(a.full, a.mark.Token, a.turn) })
}

// refused notes that the authority has another holder, or a busy row.
func (a *attempt) refused(r *driver.Refusal) {
	a.failures = 0
	a.asked = time.Time{}
	a.look = true
	a.turn.report(nil)
	left := r.Left
	if r.Busy {
		left = busyRetry()
	}
	a.met = obstacle{left: left, refusal: fmt.Errorf("%w: mysql: %w", ErrHeld, r)}
}

// fault decides what an error of the authority means for this acquire: the end
// of it, or nil for another try after a moment.
func (a *attempt) fault(ctx context.Context, err error) error {
	if errors.Is(err, ErrClosed) {
		return ErrClosed
	}
	class := driver.ClassOf(err)
	if ctx.Err() != nil {
		if a.met.fault == nil && class != driver.ClassCaller && class != driver.ClassContention {
			a.met.fault = err
		}
		return a.ended(ctx)
	}
	if class == driver.ClassContention {
		a.refused(&driver.Refusal{Busy: true})
		return nil
	}
	a.met = obstacle{left: faultRetry(), refusal: a.met.refusal, fault: err}
	a.turn.report(err)
	a.failures++
	if class == driver.ClassConfig || a.failures > retries {
		return a.met.err()
	}
	return nil
}

// ended says why the wait ended: the caller's doing, the locker's, or time.
func (a *attempt) ended(ctx context.Context) error {
	if a.met.fault == nil && a.silent() {
		a.met.fault = errNoAnswer
		a.turn.report(errNoAnswer)
	}
	obstacle := a.met.err()
	switch {
	case a.caller.Err() != nil:
		return errors.Join(a.caller.Err(), obstacle)
	case errors.Is(context.Cause(ctx), ErrClosed):
		return ErrClosed
	case obstacle == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, errNoAnswer)
	}
	return obstacle
}

// retryAfter is how long contention lasts by the last refusal's word.
func (a *attempt) retryAfter() time.Duration {
	if a.met.fault != nil || a.met.refusal == nil {
		return 0
	}
	return a.met.left
}
