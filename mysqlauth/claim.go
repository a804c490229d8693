// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// claimCall is a caller's claim on its way through the lane.
type claimCall struct {
	claim  driver.Claim
	part   uint64      // of a halved batch
	ended  atomic.Bool // answered or abandoned, whichever came first
	answer chan claimAnswer
	found  finding // the lane's
}

type claimAnswer struct {
	grant driver.Grant
	err   error
}

// claimKind is what the claims of one statement have in common.
type claimKind struct {
	ttl    time.Duration
	block  uint32
	holder string
	part   uint64
}

func newClaims(a *Authority) *lane[*claimCall] {
	l := &lane[*claimCall]{
		from:     a.sessions,
		op:       "claim",
		limit:    func([]*claimCall) time.Duration { return a.timeout },
		unwanted: func(c *claimCall) bool { return c.ended.Load() },
		pick: pickBy(maxBatch,
			func(c *claimCall) claimKind { return claimKind{c.claim.TTL, c.claim.Block, c.claim.Holder, c.part} },
			func(c *claimCall) string { return c.claim.Key }),
		run: a.runClaims,
		fail: func(batch []*claimCall, err error) {
			for _, c := range batch {
				c.refuse(err)
			}
		},
	}
	return l.open()
}

// Claim implements [driver.Authority].
func (a *Authority) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := checkClaim(c); err != nil {
		return driver.Grant{}, classify("claim", err)
	}
	return a.claim(ctx, c)
}

// claim is Claim for the driver's own keys too.
func (a *Authority) claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if !a.ledger.enter() {
		return driver.Grant{}, classify("claim", ErrClosed)
	}
	defer a.ledger.leave()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	call := &claimCall{claim: c, answer: make(chan claimAnswer, 1)}
	a.claims.add(call)
	got, err := await(ctx, a, "claim", call.answer)
	if err != nil {
		if call.ended.CompareAndSwap(false, true) {
			return driver.Grant{}, err // the lane skips it, or gives back what it gets
		}
		got = <-call.answer // the answer came at the same moment
	}
	return got.grant, got.err
}

// end answers the call, unless its caller has left.
func (c *claimCall) end(got claimAnswer) bool {
	if !c.ended.CompareAndSwap(false, true) {
		return false
	}
	c.answer <- got
	return true
}

func (c *claimCall) refuse(err error) { c.end(claimAnswer{err: err}) }
