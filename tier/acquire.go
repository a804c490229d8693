// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

const (
	// boundWithoutContext bounds calls that promise an answer to callers whose
	// context has no end, or has ended already (promise P10).
	boundWithoutContext = time.Second
)

// acquire is the path of every call, in the order it happens: re-entry, the
// policy, the line inside the process, the filter, the authority, the lease.
func (l *Locker) acquire(ctx context.Context, key string, asked ask) (*Lease, error) {
	if err := checkKey(key); err != nil {
		return nil, &Error{Op: "acquire", Key: key, Err: err}
	}
	policies := l.policies.Load()
	policy := policies.find(key)
	t := asked.terms(policy)
	if err := t.validate(); err != nil {
		return nil, &Error{Op: "acquire", Key: key, Err: err}
	}
	if lease, err := l.reenter(ctx, key, t); lease != nil || err != nil {
		return lease, err
	}
	if l.rung(policy) == fallback.FailClosed && l.closing.Err() == nil {
		return nil, &Error{Op: "acquire", Key: key, RetryAfter: l.deciding(policy).RetryAfter(), Err: policy.closed}
	}
	return l.attempt(ctx, key, asked, policies, policy, t)
}

// attempt is apart from acquire, so that a call that fails closed costs nothing.
func (l *Locker) attempt(ctx context.Context, key string, asked ask, policies *policySet, policy *policy, t terms) (*Lease, error) {
	a := attempts.Get().(*attempt)
	*a = attempt{
		locker: l, caller: ctx, key: key, ask: asked, policies: policies, policy: policy, terms: t, end: time.Now().Add(t.wait),
		seat: newSeat(ctx, key, asked, policy, policies, t),
	}
	lease, err := a.run()
	switch {
	case err == nil && a.full == "": // it was handed on: nobody else knows the attempt
		*a = attempt{}
		attempts.Put(a)
	case errors.Is(err, errHandedLate):
		return l.acquire(ctx, key, asked.until(a.end))
	case err != nil:
		return nil, &Error{Op: "acquire", Key: key, RetryAfter: a.retryAfter(), Err: err}
	}
	return lease, nil
}

// bound joins all that can end a wait: the caller, the locker, and time.
func (l *Locker) bound(ctx context.Context, wait time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	unhook := context.AfterFunc(l.closing, cancel)
	return ctx, func() {
		unhook()
		cancel()
	}
}

// attempts are reused by calls that are handed what another has held.
var attempts = sync.Pool{New: func() any { return new(attempt) }}

// attempt is one Acquire on its way.
type attempt struct {
	locker *Locker
	caller context.Context
	key    string
	full   string // known once a server is to be asked
	ask    ask
	end    time.Time // of the wait
	// The policy and the terms that come of it are those of the last reload.
	policies *policySet
	policy   *policy
	terms    terms
	*seat

	mark     driver.Mark
	marked   bool // our mark stood when the filter last answered: we are next in line
	mayStand bool // a mark of ours may stand: it has to be cleared in the end

	met      obstacle  // what the last step met
	failures int       // faults of the deciding tier in a row
	retried  bool      // on the rung retry
	asked    time.Time // since when the authority owes an answer; zero when it does not
	look     bool      // read before the next claim: the last one was refused

	closedFor time.Duration // how long until the tier that is out is asked again

	wake <-chan struct{} // nil until we wait for messages
	poll poll

	waiting    *policyMetrics // the wait is counted here; nil before it begins
	waitsSince time.Time
}

func (a *attempt) run() (*Lease, error) {
	l := a.locker
	// Close waits for us, so that what we are granted is freed before it closes
	// the drivers. It sets closing before it waits.
	l.behind.begin()
	defer l.behind.done()
	if l.closing.Err() != nil {
		return nil, ErrClosed
	}
	if err := l.queues.enter(&a.turn, !a.terms.once); err != nil {
		return nil, err
	}
	lease, err := a.inLine()
	a.waited()
	if err != nil {
		a.giveUp()
		return nil, err
	}
	return lease, nil
}

// inLine waits to be the head of the line. The one before may have handed on what
// it held; otherwise the servers are asked.
func (a *attempt) inLine() (*Lease, error) {
	waited := a.turn.waits()
	head := true
	if waited {
		a.waits()
		head = a.awaitTurn()
	}
	if a.turn.handed() { // perhaps at the moment at which the wait began or ended
		return a.handed()
	}
	if waited {
		a.met = a.turn.inTheWay()
	}
	if !head {
		return nil, a.ended()
	}
	return a.asHead()
}

// awaitTurn waits until the turn is the head, and returns false when the caller,
// the locker or time ended that before.
func (a *attempt) awaitTurn() bool {
	timers := &a.locker.timers
	timer, _ := timers.Get().(*time.Timer)
	if timer == nil {
		timer = time.NewTimer(time.Hour)
	}
	timer.Reset(time.Until(a.end)) // the end, however long the process stood still since
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
	select {
	case <-a.turn.ready:
		a.turn.heard()
		return true
	case <-a.caller.Done():
	case <-a.locker.closing.Done():
	case <-timer.C:
	}
	return false
}

// handed is the lease that the one before has handed on, unless it has ended since.
func (a *attempt) handed() (*Lease, error) {
	if err := a.tenure.err(); err != nil {
		return nil, errHandedLate
	}
	return &a.tenure.first, nil
}

// errHandedLate sends a call to the end of the line: what it was handed has ended
// before it saw it.
var errHandedLate = errors.New("what was handed on had ended")

// asHead asks the servers until one of them or the caller ends it.
func (a *attempt) asHead() (*Lease, error) {
	l := a.locker
	a.full = l.fullKey(a.key)
	a.mark = driver.Mark{Token: driver.NewToken(), TTL: a.terms.ttl}
	a.poll = newPoll(a.terms.ttl)
	ctx, unbind := l.bound(a.caller, time.Until(a.end))
	defer unbind()
	if a.turn.late && !pause(ctx, a.terms.giveWay) {
		return nil, a.ended()
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
		if a.wake == nil && l.hears(a.policy) && a.met.refusal != nil {
			// The subscription's confirmation is a wake-up as well, so that
			// what was released before it is not missed (faults.md G1).
			a.wake, stop = l.filter.Wakeups(a.full)
		}
		a.waits()
		if !a.sleep(ctx) {
			return nil, a.ended()
		}
	}
}

// step asks the tiers of the policy once. It returns a lease, or the error that
// ends the acquire, or neither: then met says what was in the way.
func (a *attempt) step(ctx context.Context) (*Lease, error) {
	a.reload(ctx)
	switch a.locker.rung(a.policy) {
	case fallback.Local:
		return a.claimLocal(ctx)
	case fallback.FailClosed:
		return nil, a.closed()
	case fallback.None, fallback.Retry: // the tiers are asked
	}
	if a.policy.Tiers == TiersFilter {
		return a.claimMark(ctx)
	}
	lease, err := a.claimRow(ctx)
	if lease == nil && err == nil && a.met.fault != nil && a.locker.rung(a.policy) == fallback.Local {
		return a.claimLocal(ctx) // that fault was the last that was needed
	}
	return lease, err
}

// claimRow is the ordinary step: the filter, then the authority.
func (a *attempt) claimRow(ctx context.Context) (*Lease, error) {
	l := a.locker
	a.asked = time.Now()
	if err := l.ready.check(ctx, l); err != nil {
		return nil, a.fault(ctx, err)
	}
	a.asked = time.Time{}
	if a.mark.Flagged { // from the rung local
		a.changeMark(ctx, false)
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
		return nil, a.ended()
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
		Key: a.full, TTL: a.terms.ttl, Holder: a.terms.holder, Block: uint32(a.terms.handoffs),
	})
	if err != nil {
		return nil, a.answered(ctx, err)
	}
	a.asked = time.Time{}
	return a.granted(ctx, grant, pass)
}

// reload takes the policies of the last reload. What the call itself asked for
// goes on to hold; options that do not fit the new policy keep the old one.
func (a *attempt) reload(ctx context.Context) {
	now := a.locker.policies.Load()
	if now == a.policies {
		return
	}
	a.policies = now
	policy := now.find(a.key)
	t := a.ask.terms(policy)
	if t.validate() != nil {
		return
	}
	if policy.Tiers != a.policy.Tiers {
		a.changeMark(ctx, false)
	}
	a.policy, a.terms = policy, t
	a.mark.TTL = t.ttl
}

// granted lets a grant of the authority overwrite the mark that stands, unless
// that is flagged: then others work without the authority.
func (a *attempt) granted(ctx context.Context, g driver.Grant, pass passage) (*Lease, error) {
	l := a.locker
	if !a.marked && pass != passOut {
		a.mayStand = true
		state, err := l.filter.Overwrite(ctx, a.full, a.mark)
		switch {
		case err != nil && ctx.Err() != nil:
			a.giveBack(g, l.rows)
			return nil, a.ended()
		case err != nil:
		case state.Ours:
			a.marked = true
		default:
			a.mayStand = false
			a.giveBack(g, l.rows)
			a.markedByOther(state)
			return nil, nil
		}
	}
	level := LevelAuthority
	if a.marked && pass != passOut {
		level = LevelFull
		l.refusals.forget(a.full)
	}
	return a.lease(ctx, g, l.rows, level)
}

// lease turns a grant into a lease, unless it comes too late to be of use.
func (a *attempt) lease(ctx context.Context, g driver.Grant, by grantor, level Level) (*Lease, error) {
	l := a.locker
	if deadline := g.Until.Add(-a.terms.margin()); !time.Now().Before(deadline) {
		a.giveBack(g, by)
		return nil, a.fault(ctx, errLateGrant)
	}
	a.turn.granted()
	t := newTenure(a, g, by, level)
	if t == nil {
		a.giveBack(g, by)
		return nil, ErrClosed
	}
	if level == LevelLocal {
		l.promoteSoon(t.holding) // the tier may have come back before the tenure was there to be seen
	}
	// Behind the caller: a sink or redactor that panics here would leave a lease
	// that nobody has a handle on.
	if entry := l.log.Check(zap.DebugLevel, "lease granted"); entry != nil {
		l.behind.run(func() {
			entry.Write(zap.String("key", l.shown(a.key)), zap.Stringer("level", level), zap.Uint64("fence", g.Fence))
		})
	}
	return &t.first, nil
}

// giveBack frees a grant that becomes no lease.
func (a *attempt) giveBack(g driver.Grant, by grantor) {
	a.locker.releaseBehind(by, driver.Release{Key: a.full, Token: g.Token, Until: g.Until})
}

// giveUp takes our mark away, if we may have one, and lets the next of this
// process go ahead. What we were handed at that moment goes on to the next.
func (a *attempt) giveUp() {
	if a.turn.withdraw() {
		a.locker.behind.run(func() { _ = a.tenure.first.Release(context.Background()) })
		return
	}
	if !a.mayStand {
		a.turn.leave()
		return
	}
	a.turn.ending()
	// Who looked once and was just told that the key is held has nothing to tell
	// to those who wait: the holder will. Two such callers would wake each other
	// for as long as it is held.
	wake := !a.terms.once || !a.look || a.met.fault != nil
	a.locker.behind.run(func() { a.locker.clearAndLeave(a.full, a.mark.Token, wake, &a.turn) })
}
