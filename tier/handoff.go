// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"time"
)

// Hand-off: with callers of this process in line, what is held passes to the next
// of them without a server. The claim has reserved a block of fences, of which each
// tenure takes the next. After a while, or with the block used up, it goes back
// through the server, and this process gives way to the others.

// block is what a holding has to give to the tenures after its first; nothing
// where the policy has no hand-off, and then nobody has to give way either, or
// where the authority has not granted it: what was promoted has no fences to give.
type block struct {
	next, last uint64
	until      time.Time // no hand-off after it
	policies   *policySet
}

// canHandOn reports whether the holding may pass to another tenure when this one
// ends now. What ended otherwise than by a clean Release, or may have a guarded
// transaction under way whose end this process does not see, ends the whole lease
// through the server, so that its token dies with it. The caller holds the mutex.
func (t *tenure) canHandOn(now time.Time) bool {
	l := t.locker
	return t.state == tenureHeld && t.block.policies != nil && t.terms.minHold == 0 &&
		t.pins.n == 0 && !t.pins.unseen && !t.freeing &&
		t.until.Sub(now) >= t.ttl/2 &&
		l.closing.Err() == nil && t.block.policies == l.policies.Load()
}

// usedUp reports that it is the others' turn.
func (b *block) usedUp(now time.Time) bool { return b.next > b.last || !now.Before(b.until) }

// handOn ends the tenure by passing the holding to the next in line, and returns
// false when the holding has to go back. The caller holds the mutex.
func (t *tenure) handOn(now time.Time) bool {
	if !t.canHandOn(now) {
		return false
	}
	if t.block.usedUp(now) {
		t.turn.givesWay()
		return false
	}
	next := t.turn.pass(t.holding)
	if next == nil {
		return false
	}
	t.isOver()
	t.state = tenureEnding
	t.endContext(context.Canceled)
	t.locker.metrics.handedOn()
	next.begin(now)
	if next.overdue.Before(t.armed) && !next.overdue.IsZero() {
		t.arm(now)
	}
	return true
}

// take makes a waiting tenure the one whose turn it is. The caller holds the
// mutexes of the holding and of the line.
func (h *holding) take(t *tenure) bool {
	if t.terms.ttl != h.ttl || t.terms.holder != h.holder || t.terms.minHold != 0 || t.policies != h.block.policies {
		return false
	}
	t.holding, t.fence = h, h.block.next
	h.block.next++
	h.current = t
	return true
}
