// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier/driver"
)

// claimLocal is the step of an acquire on the rung local: no other process may
// have a mark, and the key is granted within this one. Only the head of the
// key's line gets here, so a lease of this process that lives is waited for.
func (a *attempt) claimLocal(ctx context.Context) (*Lease, error) {
	if !a.flagMark(ctx) {
		return nil, nil
	}
	l := a.locker
	outage := l.deciding(a.policy).OpenSince()
	if outage.IsZero() { // it came back meanwhile
		return a.step(ctx)
	}
	end, first := a.policy.local.begin(outage, time.Now(), a.policy.LocalFor)
	if first {
		l.log.Warn("going on within this process alone: leases have no fence, and other processes may do the same",
			zap.String("policy", a.policy.name), zap.Duration("local_for", a.policy.LocalFor))
	}
	by := &localGrantor{mutex: &l.local, token: driver.NewToken(), end: end, margin: a.terms.margin()}
	return a.claimFrom(ctx, by, LevelLocal)
}

// claimMark is the step of an acquire under a policy of Redis alone: the mark is
// the lease. It is flagged, so that nobody looks past it.
func (a *attempt) claimMark(ctx context.Context) (*Lease, error) {
	a.mark.Flagged = true
	by := &markGrantor{locker: a.locker, token: a.mark.Token, ttl: a.terms.ttl}
	lease, err := a.claimFrom(ctx, by, LevelFilter)
	if lease == nil {
		a.mark.Token = driver.NewToken() // the driver may still be undoing this one
	}
	return lease, err
}

// claimFrom asks a grantor other than the authority.
func (a *attempt) claimFrom(ctx context.Context, by grantor, level Level) (*Lease, error) {
	a.asked = time.Now()
	grant, err := by.Claim(ctx, driver.Claim{Key: a.full, TTL: a.terms.ttl, Holder: a.terms.holder, Block: 1})
	if err != nil {
		return nil, a.answered(ctx, err)
	}
	a.asked = time.Time{}
	return a.lease(ctx, grant, by, level)
}

// flagMark plants a flagged mark while Redis lives, and reports whether nobody
// else's stands in the way.
func (a *attempt) flagMark(ctx context.Context) bool {
	if a.filters() && !a.mark.Flagged {
		a.changeMark(ctx, true) // also with Redis out: a renewal may plant it later
	}
	if !a.filters() || a.locker.filterHealth.State() != breaker.Closed {
		return true
	}
	// Whose mark it is cannot be looked up now, however long it has stood.
	pass := a.askFilter(ctx)
	return pass == passOpen || pass == passOut
}

// changeMark takes our mark away, if it may stand, and draws the next one: a mark
// is flagged or not from its planting on.
func (a *attempt) changeMark(ctx context.Context, flagged bool) {
	if a.mayStand {
		// An error leaves the mark to the driver, which goes on.
		_ = a.locker.filter.Clear(ctx, a.full, a.mark.Token, false)
	}
	a.mark.Token, a.mark.Flagged = driver.NewToken(), flagged
	a.marked, a.mayStand = false, false
}
