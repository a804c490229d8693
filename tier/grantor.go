// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"slices"
	"time"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

// grantor is what stands behind a tenure: it granted it, renews it, is asked by
// Verify and takes it back. It is recorded with the tenure, so that nothing is
// routed by the state of a tier today. The methods are those of
// [driver.Authority], which is the grantor of full leases.
type grantor interface {
	Claim(ctx context.Context, c driver.Claim) (driver.Grant, error)
	Look(ctx context.Context, key string) (driver.Row, error)
	Renew(ctx context.Context, rs []driver.Renewal) []driver.Renewed
	Release(ctx context.Context, r driver.Release) error
}

// rowGrantor is the authority. It is a pointer so that grantors can be compared,
// whatever a driver is.
type rowGrantor struct{ driver.Authority }

// markGrantor grants flagged marks of the filter, for policies of Redis alone.
// Its token is the mark's, drawn by whoever claims.
type markGrantor struct {
	locker *Locker
	token  driver.Token
	ttl    time.Duration
	// undoing are tokens whose marks the driver may still be taking back.
	undoing []driver.Token
	// granted is a local time before the grant, from which MinHold counts.
	granted time.Time
}

var _ grantor = (*markGrantor)(nil)

func (g *markGrantor) mark() driver.Mark {
	return driver.Mark{Token: g.token, TTL: g.ttl, Flagged: true}
}

func (g *markGrantor) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	sent := time.Now()
	state, err := g.locker.filter.Mark(ctx, c.Key, g.mark())
	switch {
	case err != nil:
		return driver.Grant{}, err
	case !state.Ours:
		return driver.Grant{}, &driver.Refusal{Left: state.Left, Leaving: slices.Contains(g.undoing, state.Other)}
	}
	g.granted = sent
	return driver.Grant{Token: g.token, Until: sent.Add(g.ttl)}, nil
}

// Look asks by extending, which never plants: no script of the filter only reads.
func (g *markGrantor) Look(ctx context.Context, key string) (driver.Row, error) {
	sent := time.Now()
	state, err := g.locker.filter.Extend(ctx, key, g.mark())
	switch {
	case err != nil:
		return driver.Row{}, err
	case !state.Ours:
		return driver.Row{Held: !state.Other.IsZero(), Token: state.Other, Left: state.Left}, nil
	}
	return driver.Row{Held: true, Token: g.token, Left: g.ttl, Until: sent.Add(g.ttl)}, nil
}

func (g *markGrantor) Renew(ctx context.Context, rs []driver.Renewal) []driver.Renewed {
	answers := make([]driver.Renewed, len(rs))
	for i, r := range rs {
		row, err := g.Look(ctx, r.Key)
		switch {
		case err != nil:
			answers[i].Err = err
		case row.Token != g.token:
			answers[i].Err = lossOf(row, g.token)
		default:
			answers[i].Until = row.Until
		}
	}
	return answers
}

func (g *markGrantor) Release(ctx context.Context, r driver.Release) error {
	keep := time.Until(g.granted.Add(r.MinHold))
	row, err := g.Look(ctx, r.Key)
	switch {
	case err != nil && keep > 0:
		return err // it stays for its TTL
	case err != nil:
		// Whether it was still ours will not be known; that it goes will.
		g.locker.behind.run(func() { g.locker.clear(r.Key, g.token, true) })
		return err
	case row.Token != g.token:
		return lossOf(row, g.token)
	}
	if keep > 0 {
		_, err := g.locker.filter.Extend(ctx, r.Key, driver.Mark{Token: g.token, TTL: keep, Flagged: true})
		return err
	}
	return g.locker.filter.Clear(ctx, r.Key, g.token, true)
}

// lossOf says what became of a lease whose row or mark is not ours any more.
func lossOf(row driver.Row, token driver.Token) *driver.Loss {
	reason := driver.LossFreed
	switch {
	case row.Token == token:
		reason = driver.LossExpired
	case !row.Token.IsZero():
		reason = driver.LossTaken
	}
	return &driver.Loss{Reason: reason, Fence: row.Fence}
}

// localGrantor grants within this process, until the policy's local time ends.
// It sends nothing and never fails but by that end.
type localGrantor struct {
	mutex *fallback.ReentrantMutex
	token driver.Token
	end   time.Time
	// margin is what the tenure takes off: its local time has none to lose.
	margin time.Duration
	// granted is the time of the grant, from which MinHold counts.
	granted time.Time
}

var _ grantor = (*localGrantor)(nil)

// left is how long a hold may last that begins now.
func (g *localGrantor) left(ttl time.Duration) time.Duration { return min(ttl, time.Until(g.end)) }

func (g *localGrantor) Claim(_ context.Context, c driver.Claim) (driver.Grant, error) {
	now := time.Now()
	left := g.left(c.TTL)
	if left <= 0 {
		return driver.Grant{}, &driver.Loss{Reason: driver.LossExpired}
	}
	if err := g.mutex.TryLock(c.Key, g.token, left); err != nil {
		return driver.Grant{}, &driver.Refusal{Busy: true} // a lost tenure's hold, about to expire
	}
	g.granted = now
	return driver.Grant{Token: g.token, Until: now.Add(left + g.margin)}, nil
}

func (g *localGrantor) Look(_ context.Context, key string) (driver.Row, error) {
	left, held := g.mutex.Holds(key, g.token)
	if !held {
		return driver.Row{}, nil
	}
	return driver.Row{Held: true, Token: g.token, Left: left, Until: time.Now().Add(left)}, nil
}

func (g *localGrantor) Renew(_ context.Context, rs []driver.Renewal) []driver.Renewed {
	answers := make([]driver.Renewed, len(rs))
	for i, r := range rs {
		now := time.Now()
		left := g.left(r.TTL)
		if left <= 0 || g.mutex.Renew(r.Key, g.token, left) != nil {
			answers[i].Err = &driver.Loss{Reason: driver.LossExpired}
			continue
		}
		answers[i].Until = now.Add(left + g.margin)
	}
	return answers
}

func (g *localGrantor) Release(_ context.Context, r driver.Release) error {
	var err error
	if keep := time.Until(g.granted.Add(r.MinHold)); keep > 0 {
		err = g.mutex.Renew(r.Key, g.token, keep)
	} else {
		err = g.mutex.Unlock(r.Key, g.token)
	}
	if err != nil {
		return &driver.Loss{Reason: driver.LossExpired}
	}
	return nil
}
