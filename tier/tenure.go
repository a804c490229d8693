// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	locker *Locker
	turn   *turn
	key    string
	full   string
	policy *policy
	terms  terms
	level  Level
	// grant is what it began with: its fence never changes.
	grant driver.Grant
	// granted is a local time before the grant, from which MinHold counts.
	granted time.Time
	since   time.Time // of the hold, for metrics
	rung    fallback.Rung
	mark    driver.Mark

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	state tenureState
	// by stands behind the tenure, under token. Promotion changes both, once.
	by        grantor
	token     driver.Token
	promotion chan struct{} // closed when it has ended; nil before it begins
	// undoing are marks of promotions that failed; only promotions touch it.
	undoing []driver.Token

	handles  int       // entries not released yet
	pins     pins      // guarded transactions that Release waits for
	freeing  bool      // a guarded transaction may have freed the row
	cause    error     // why it was called off or lost
	until    time.Time // local time before which it does not expire
	overdue  time.Time // MaxHold's bound; zero when there is none
	timer    *time.Timer
	marks    markWriter
	notes    []func() // what to log once the mutex is free
	renewing renewalPlan
}

// heldBy is the key under which a context carries tenures of a locker, for
// re-entry: the innermost first.
type heldBy struct{ locker *Locker }

type carried struct {
	tenure *tenure
	outer  *carried
}

// newTenure returns nil when the locker was closed meanwhile.
func newTenure(a *attempt, g driver.Grant, by grantor, level Level) *tenure {
	t := &tenure{
		locker: a.locker, turn: a.turn, key: a.key, full: a.full, policy: a.policy, terms: a.terms,
		by: by, token: g.Token,
		level: level, rung: a.rung(level), grant: g, granted: g.Until.Add(-a.terms.ttl), mark: a.mark, until: g.Until, handles: 1,
	}
	if t.terms.maxHold > 0 {
		t.overdue = time.Now().Add(t.terms.maxHold)
	}
	t.ctx, t.cancel = context.WithCancelCause(t.carriedBy(context.WithoutCancel(a.caller)))
	t.mu.Lock()
	defer t.unlock()
	if !a.locker.renewer.add(t) {
		return nil
	}
	t.isGranted()
	t.timer = time.AfterFunc(t.untilNext(time.Now()), t.tick)
	return t
}

// carriedBy returns ctx with the tenure in it, for re-entry.
func (t *tenure) carriedBy(ctx context.Context) context.Context {
	outer, _ := ctx.Value(heldBy{t.locker}).(*carried)
	return context.WithValue(ctx, heldBy{t.locker}, &carried{t, outer})
}

// reenter returns another handle on the tenure that ctx carries, nil when it
// carries none of this key that is whole. A promise that the tenure's terms do
// not keep is refused, not dropped.
func (l *Locker) reenter(ctx context.Context, full string, asked terms) (*Lease, error) {
	held, _ := ctx.Value(heldBy{l}).(*carried)
	for held != nil && held.tenure.full != full {
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

// unlock frees the mutex and then, behind the caller, says what was noted under
// it: a log sink may block, or ask the lease, and the caller may be the one who
// brings other leases' renewals.
func (t *tenure) unlock() {
	notes := t.notes
	t.notes = nil
	t.mu.Unlock()
	if len(notes) == 0 {
		return
	}
	t.locker.behind.run(func() {
		for _, say := range notes {
			say()
		}
	})
}

func (t *tenure) note(say func()) { t.notes = append(t.notes, say) }

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

func (t *tenure) deadline() time.Time { return t.until.Add(-t.terms.margin()) }

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

// tick is the timer.
func (t *tenure) tick() {
	t.mu.Lock()
	defer t.unlock()
	now := time.Now()
	t.readClock(now)
	if t.state == tenureHeld || t.state == tenureCalledOff {
		t.timer.Reset(t.untilNext(now))
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
	t.cancel(t.cause)
	t.locker.renewer.suspend(t)
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
		t.cancel(t.cause)
		t.note(func() {
			t.locker.log.Warn("lease lost", zap.String("key", t.locker.shown(t.key)), zap.Uint64("fence", t.grant.Fence), zap.Error(cause))
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
	t.locker.renewer.forget(t) // last: Close must see the mark's delete under way
}

// standing returns what stands behind the tenure now, and under which token.
func (t *tenure) standing() (grantor, driver.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.by, t.token
}

// end ends the tenure by the server's word, unless its release has begun: what
// the row looks like is then our own doing.
func (t *tenure) end(loss *driver.Loss) {
	t.mu.Lock()
	defer t.unlock()
	t.notOurs(loss)
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
		t.cancel(t.cause)
	case tenureCalledOff: // the first cause stands
	case tenureLost, tenureEnding:
		return
	}
	t.over()
}

// leave takes one handle back. It reports whether it was the last and, when the
// server has said already that there is nothing to release, its answer.
func (t *tenure) leave() (last bool, loss *driver.Loss) {
	t.mu.Lock()
	defer t.unlock()
	t.handles--
	if t.handles > 0 {
		return false, nil
	}
	loss, _ = errors.AsType[*driver.Loss](t.cause)
	if t.state != tenureLost {
		t.isOver()
	}
	t.state = tenureEnding
	t.timer.Stop()
	t.cancel(context.Canceled)
	t.locker.renewer.suspend(t)
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
