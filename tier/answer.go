// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

// answered decides what an error of a claim means: contention, or a fault.
func (a *attempt) answered(ctx context.Context, err error) error {
	if refusal, ok := errors.AsType[*driver.Refusal](err); ok {
		a.refused(refusal)
		return nil
	}
	return a.fault(ctx, err)
}

// closed is the end of the ladder.
func (a *attempt) closed() error {
	a.met.fault = a.policy.closed
	a.turn.report(a.policy.closed)
	a.closedFor = a.locker.deciding(a.policy).RetryAfter()
	return a.policy.closed
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
	a.met = obstacle{left: left, refusal: fmt.Errorf("%w: %s: %w", ErrHeld, decidingName(a.policy), r)}
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
		return a.ended()
	}
	if class == driver.ClassContention {
		a.refused(&driver.Refusal{Busy: true})
		return nil
	}
	a.met = obstacle{left: a.policy.pause(), refusal: a.met.refusal, fault: err}
	a.turn.report(err)
	a.failures++
	health := a.locker.deciding(a.policy)
	switch a.policy.Degrade.Next(fallback.Situation{
		Health: health.State(), Faulted: true, Retryable: class != driver.ClassConfig,
		Retries: a.failures - 1, Attempts: a.policy.Attempts,
		LocalLeft: a.policy.local.left(health.OpenSince(), time.Now(), a.policy.LocalFor),
	}) {
	case fallback.Retry:
		a.retried = true
		return nil
	case fallback.Local:
		return nil
	case fallback.None, fallback.FailClosed:
	}
	a.closedFor = health.RetryAfter()
	return a.met.err()
}

// ended says why the wait ended: the caller's doing, the locker's, or time.
func (a *attempt) ended() error {
	if a.met.fault == nil && a.silent() {
		a.met.fault = errSilent
		a.turn.report(errSilent)
	}
	obstacle := a.met.err()
	switch {
	case a.caller.Err() != nil:
		return errors.Join(a.caller.Err(), obstacle)
	case a.locker.closing.Err() != nil:
		return ErrClosed
	case obstacle == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, errNoAnswer)
	}
	return obstacle
}

// retryAfter is how long contention lasts by the last refusal's word, or how long
// it is until the tier that is out is asked again.
func (a *attempt) retryAfter() time.Duration {
	switch {
	case a.met.fault != nil:
		return a.closedFor
	case a.met.refusal == nil:
		return 0
	}
	return a.met.left
}

// silent reports that the authority has owed an answer for longer than one that
// is well takes: half its timeout.
func (a *attempt) silent() bool {
	return !a.asked.IsZero() && time.Since(a.asked) >= a.locker.authority.Timeout()/2
}

// errSilent is a fault: the authority has owed an answer for too long.
var errSilent = errors.New("mysql: no answer")

// errNoAnswer is all that is known when the wait ends before the first answer.
var errNoAnswer = errors.New("no answer within the wait")

var errLateGrant = errors.New("the grant arrived with its time used up")
