// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

// tenureState is where a tenure stands. It passes, under the tenure's mutex,
// from
//
//	held --(MaxHold, Close)--> called off --(deadline)--> lost
//	held --(deadline, the server's no)--> lost, or freed by its own transaction
//	any of them --(Release of the last handle)--> ending
//
// and never back. Called off and lost both end the holder's context; a called
// off one still keeps the next in line waiting, since its row does.
type tenureState uint8

const (
	tenureHeld tenureState = iota
	tenureCalledOff
	tenureLost
	tenureEnding
)

// tenure is one holder's turn: what its handles, the [Lease]s, share.
type tenure struct {
	*holding // nil while it waits in line
	first    Lease
	turn     *turn
	terms    *terms // shared with others on the same: never changed
	policies *policySet
	caller   context.Context // whose values Context carries
	fence    uint64          // never changes
	// granted is a local time before the grant, from which MinHold counts.
	granted time.Time
	since   time.Time // of the hold, for metrics
	rung    fallback.Rung

	// Under the holding's mutex.
	state   tenureState
	handles int       // entries not released yet
	pins    pins      // guarded transactions that Release waits for
	freeing bool      // a guarded transaction may have freed the row
	cause   error     // why it was called off or lost
	overdue time.Time // MaxHold's bound; zero when there is none
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// seat is a caller's place in line with what it becomes. It is apart from the
// attempt, which is gone when the caller holds something.
type seat struct {
	turn   turn
	tenure tenure
}

// newSeat begins the tenure of a caller that has one handle. The terms are those
// of the policy, unless the call has asked for others.
func newSeat(caller context.Context, key string, asked ask, policy *policy, policies *policySet, t terms) *seat {
	var s *seat
	lasting := &policy.terms
	if len(asked.options) == 0 {
		s = &seat{}
	} else {
		with := &struct {
			seat
			own terms
		}{own: t}
		s, lasting = &with.seat, &with.own
	}
	s.turn = turn{key: key, tenure: &s.tenure}
	s.tenure = tenure{turn: &s.turn, terms: lasting, policies: policies, caller: caller, handles: 1}
	s.tenure.first.tenure = &s.tenure
	return s
}

// newTenure returns nil when the locker was closed meanwhile.
func newTenure(a *attempt, g driver.Grant, by grantor, level Level) *tenure {
	t := &a.tenure
	t.terms, t.policies = a.lasting(), a.policies // of the last reload
	now := time.Now()
	h := &holding{
		locker: a.locker, key: a.key, full: a.full, policy: a.policy, ttl: a.terms.ttl, holder: a.terms.holder,
		level: level, proof: g.Token, table: g.Table, mark: a.mark, by: by, token: g.Token, until: g.Until, current: t,
	}
	if by == a.locker.rows && a.terms.handoffs > 1 {
		h.block = block{
			next: g.Fence + 1, last: g.Fence + uint64(a.terms.handoffs) - 1,
			until: now.Add(a.terms.handoffFor), policies: a.policies,
		}
	}
	t.holding, t.fence, t.rung, t.granted = h, g.Fence, a.rung(level), g.Until.Add(-a.terms.ttl)
	h.mu.Lock()
	defer h.unlock()
	if !a.locker.renewer.add(h) {
		t.holding = nil
		return nil
	}
	t.begin(now)
	next := t.untilNext(now)
	h.armed = now.Add(next)
	h.timer = time.AfterFunc(next, h.tick)
	return t
}

// lasting are the terms for as long as something is held on them.
func (a *attempt) lasting() *terms {
	switch {
	case len(a.ask.options) == 0:
		return &a.policy.terms
	case a.policies == a.tenure.policies:
		return a.tenure.terms
	}
	own := a.terms
	return &own
}

// begin is the beginning of the hold. The caller holds the mutex.
func (t *tenure) begin(now time.Time) {
	if t.terms.maxHold > 0 {
		t.overdue = now.Add(t.terms.maxHold)
	}
	t.isGranted()
}

// context is made when somebody asks for it. The caller holds the mutex.
func (t *tenure) context() context.Context {
	if t.ctx != nil {
		return t.ctx
	}
	t.ctx, t.cancel = context.WithCancelCause(t.carriedBy(context.WithoutCancel(t.caller)))
	switch t.state {
	case tenureHeld:
	case tenureCalledOff, tenureLost:
		t.cancel(t.cause)
	case tenureEnding:
		t.cancel(context.Canceled)
	}
	return t.ctx
}

// endContext ends it, with its cause, if somebody has asked for it. The caller
// holds the mutex.
func (t *tenure) endContext(cause error) {
	if t.cancel != nil {
		t.cancel(cause)
	}
}

// reenter returns another handle on the tenure that ctx carries, nil when it
// carries none of this key that is whole. A promise that the tenure's terms do
// not keep is refused, not dropped.
func (l *Locker) reenter(ctx context.Context, key string, asked terms) (*Lease, error) {
	held, _ := ctx.Value(heldBy{l}).(*carried)
	for held != nil && held.tenure.key != key {
		held = held.outer
	}
	if held == nil || ctx.Err() != nil {
		return nil, nil
	}
	t := held.tenure
	if asked.minHold > t.terms.minHold {
		return nil, t.error("acquire", optionError("min hold %v on a key that ctx holds already, with %v: ask for it when the key is acquired first", asked.minHold, t.terms.minHold))
	}
	return t.enter(), nil
}

// enter counts another handle, or returns nil when the tenure is not whole any
// more: its release has begun, or its context has ended.
func (t *tenure) enter() *Lease {
	t.mu.Lock()
	defer t.unlock()
	t.readClock(time.Now())
	if t.state != tenureHeld {
		return nil
	}
	t.handles++
	return &Lease{tenure: t, reentered: true}
}

// untilNext is when the clock has something to say. The caller holds the mutex.
func (t *tenure) untilNext(now time.Time) time.Duration {
	next := t.deadline()
	if t.state == tenureHeld && !t.overdue.IsZero() && t.overdue.Before(next) {
		next = t.overdue
	}
	return next.Sub(now)
}

// errDeadline is how a lease ends without a word from the server.
var errDeadline = fmt.Errorf("%w: its deadline passed without a renewal", ErrLost)

// deadlineCause is errDeadline, or what says more. The caller holds the mutex.
func (t *tenure) deadlineCause() error {
	if _, local := t.by.(*localGrantor); local {
		return fmt.Errorf("%w: the policy's local_for (%v) is used up", ErrLost, t.policy.LocalFor)
	}
	return errDeadline
}

// readClock applies what the clock says. The caller holds the mutex.
func (t *tenure) readClock(now time.Time) {
	switch t.state {
	case tenureHeld, tenureCalledOff:
		if !now.Before(t.deadline()) {
			t.lose(t.deadlineCause())
		} else if t.state == tenureHeld && !t.overdue.IsZero() && !now.Before(t.overdue) {
			t.callOff(fmt.Errorf("%w: after %v", ErrMaxHold, t.terms.maxHold))
		}
	case tenureLost, tenureEnding:
	}
}

// err is nil while the tenure is held.
func (t *tenure) err() error {
	t.mu.Lock()
	defer t.unlock()
	t.readClock(time.Now())
	switch t.state {
	case tenureHeld:
		return nil
	case tenureCalledOff, tenureLost:
		return t.cause
	case tenureEnding:
		return context.Canceled
	}
	return nil
}

// callOff ends the holder's context and the renewals, and leaves the row to
// expire: who still works under the lease may do so until then, so nobody else
// is let in earlier unless the holder releases. The caller holds the mutex.
func (t *tenure) callOff(cause error) {
	if t.state != tenureHeld {
		return
	}
	t.state = tenureCalledOff
	t.isLost(cause)
	t.cause = t.error("hold", cause)
	t.endContext(t.cause)
	t.locker.renewer.suspend(t.holding)
	if errors.Is(cause, ErrMaxHold) {
		t.note(func() {
			t.locker.log.Error("lease was held longer than allowed; its context is cancelled",
				zap.String("key", t.locker.shown(t.key)), zap.Duration("max_hold", t.terms.maxHold), zap.String("holder", t.terms.holder))
		})
	}
}

// lose ends a tenure that nobody released: the holder learns it at once, and
// the next in line goes ahead. The caller holds the mutex.
func (t *tenure) lose(cause error) {
	switch t.state {
	case tenureHeld:
		t.isLost(cause)
		t.cause = t.error("hold", cause)
		t.endContext(t.cause)
		t.note(func() {
			t.locker.log.Warn("lease lost", zap.String("key", t.locker.shown(t.key)), zap.Uint64("fence", t.fence), zap.Error(cause))
		})
	case tenureCalledOff: // the first cause stands
	case tenureLost, tenureEnding:
		return
	}
	t.over()
}

// over lets the next in line go ahead. The caller holds the mutex.
func (t *tenure) over() {
	t.state = tenureLost
	t.isOver()
	t.timer.Stop()
	t.turn.ending()
	t.finishMark()
	t.locker.renewer.forget(t.holding) // last: Close must see the mark's delete under way
}

// end ends the current tenure by the server's word, unless its release has begun: what
// the row looks like is then our own doing.
func (h *holding) end(loss *driver.Loss) {
	h.mu.Lock()
	defer h.unlock()
	h.current.notOurs(loss)
}

// notOurs ends a tenure whose row is another's or nobody's. When its own
// transaction may have freed the row that is no loss, and ends the context as a
// release does; Release has still to be called. The caller holds the mutex.
func (t *tenure) notOurs(loss *driver.Loss) {
	if !t.freeing {
		t.lose(fmt.Errorf("%w: %w", ErrLost, loss))
		return
	}
	switch t.state {
	case tenureHeld:
		t.cause = context.Canceled
		t.endContext(t.cause)
	case tenureCalledOff: // the first cause stands
	case tenureLost, tenureEnding:
		return
	}
	t.over()
}

// leave takes one handle back. It reports whether it was the last and nobody of
// this process took what is held and, when the server has said already that there
// is nothing to release, its answer.
func (t *tenure) leave() (last bool, loss *driver.Loss) {
	t.mu.Lock()
	defer t.unlock()
	t.handles--
	if t.handles > 0 {
		return false, nil
	}
	now := time.Now()
	t.readClock(now)
	if t.handOn(now) {
		return false, nil
	}
	loss, _ = errors.AsType[*driver.Loss](t.cause)
	if t.state != tenureLost {
		t.isOver()
	}
	t.state = tenureEnding
	t.timer.Stop()
	t.endContext(context.Canceled)
	t.locker.renewer.suspend(t.holding)
	return true, loss
}

func (t *tenure) error(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, said := errors.AsType[*Error](err); said {
		return err
	}
	return &Error{Op: op, Key: t.key, Level: t.level, Err: err}
}
