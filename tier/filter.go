// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier/driver"
)

// passage is what the filter's answer means for the way to the authority.
type passage uint8

const (
	passOpen    passage = iota // our mark stands: claim
	passLook                   // a foreign mark has stood too long to be believed: look
	passRefused                // wait
	passOut                    // the filter does not answer: the authority alone
)

// askFilter plants our mark, or extends it where we were next in line already.
func (a *attempt) askFilter(ctx context.Context) passage {
	l := a.locker
	if !a.filters() || l.filterHealth.State() != breaker.Closed {
		return passOut
	}
	if a.marked {
		state, err := l.filter.Extend(ctx, a.full, a.mark)
		if err != nil {
			return passOut
		}
		if state.Ours {
			return passOpen
		}
		a.marked = false // forgotten, or taken over: no longer next
	}
	state, err := l.filter.Mark(ctx, a.full, a.mark)
	if err != nil {
		// The driver undoes what it may have planted, in its own time; a mark
		// under the same token would be undone with it.
		a.mark.Token = driver.NewToken()
		a.mayStand = false
		return passOut
	}
	if state.Ours {
		a.marked, a.mayStand = true, true
		return passOpen
	}
	a.markedByOther(state)
	if state.Flagged {
		return passRefused
	}
	known := l.refusals.see(a.full, state.Other, time.Now())
	if known >= patience {
		return passLook
	}
	a.met.look = patience - known
	return passRefused
}

// filters reports whether the policy has a filter before what decides.
func (a *attempt) filters() bool { return a.locker.filter != nil && a.policy.Tiers == TiersBoth }

// hears reports whether a policy's keys have messages about their release: under
// one of the authority alone nobody sends any, and Redis is not to be asked.
func (l *Locker) hears(p *policy) bool { return l.filter != nil && p.Tiers != TiersAuthority }

// markedByOther notes that a foreign mark stands in the way.
func (a *attempt) markedByOther(s driver.MarkState) {
	a.met = obstacle{
		left:    s.Left,
		refusal: fmt.Errorf("%w: redis: another's mark stands for %v", ErrHeld, s.Left.Round(time.Millisecond)),
		fault:   a.met.fault, // only the authority's answer ends its fault
	}
}

// clear deletes a mark and, if asked to, wakes those who wait for it. It is called
// behind callers.
func (l *Locker) clear(full string, token driver.Token, wake bool) {
	_ = l.filter.Clear(l.soon.context(), full, token, wake) // after an error the driver goes on
}

// clearAndLeave lets the next of this process go ahead when our mark, which
// would refuse it, is gone; with the filter out there is nothing to wait for.
func (l *Locker) clearAndLeave(full string, token driver.Token, wake bool, turn *turn) {
	defer turn.leave()
	if l.filter == nil {
		return
	}
	if l.filterHealth.State() != breaker.Closed {
		turn.leave()
	}
	l.clear(full, token, wake)
}
