// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"errors"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// lossCause is why a tenure ended before its release.
type lossCause uint8

const (
	lostDeadline lossCause = iota // no renewal was answered in time
	lostExpired                   // the server had it expired
	lostTaken                     // by another holder
	lostFreed                     // by an operator, or with the row
	lostLocalFor                  // the time of the rung local was used up
	lostMaxHold
	lostClosed // the locker was closed
)

var lossCauses = [...]string{
	lostDeadline: "deadline", lostExpired: "expired", lostTaken: "taken", lostFreed: "freed",
	lostLocalFor: "local_for", lostMaxHold: "max_hold", lostClosed: "closed",
}

// renewOutcome is what the answer to a renewal was.
type renewOutcome uint8

const (
	renewRenewed renewOutcome = iota
	renewLost
	renewBusy  // somebody's transaction has the row locked
	renewError // asked again until the deadline
	renewLate  // the tenure had ended, or stood on something else by then
)

var renewOutcomes = [...]string{
	renewRenewed: "renewed", renewLost: "lost", renewBusy: "busy", renewError: "error", renewLate: "late",
}

// releaseOutcome is what the last handle's Release answered.
type releaseOutcome uint8

const (
	releaseReleased releaseOutcome = iota
	releaseLost
	releaseUnknown
	releaseClosed
)

var releaseOutcomes = [...]string{
	releaseReleased: "released", releaseLost: "lost", releaseUnknown: "unknown", releaseClosed: "closed",
}

// isGranted counts the tenure as held.
func (t *tenure) isGranted() {
	if seen := t.policy.seen; seen != nil {
		t.since = time.Now()
		seen.held.Inc()
	}
}

// isOver counts the end of the hold. The caller calls it once.
func (t *tenure) isOver() {
	if seen := t.policy.seen; seen != nil {
		seen.held.Dec()
		seen.hold.Observe(time.Since(t.since).Seconds())
	}
}

// isLost counts the tenure as lost, by its first cause. The caller holds the
// mutex.
func (t *tenure) isLost(cause error) {
	if m := t.locker.metrics; m != nil {
		m.lost[t.lossCause(cause)].Inc()
	}
}

func (t *tenure) lossCause(err error) lossCause {
	_, local := t.by.(*localGrantor)
	loss, answered := errors.AsType[*driver.Loss](err)
	switch {
	case errors.Is(err, ErrMaxHold):
		return lostMaxHold
	case errors.Is(err, ErrClosed):
		return lostClosed
	case errors.Is(err, errOvertaken):
		return lostTaken
	case local:
		return lostLocalFor
	case !answered:
		return lostDeadline
	}
	switch loss.Reason {
	case driver.LossTaken:
		return lostTaken
	case driver.LossFreed:
		return lostFreed
	case driver.LossExpired:
	}
	return lostExpired
}

// renewal counts an answer to a renewal.
func (m *metrics) renewal(late bool, err error) {
	if m == nil {
		return
	}
	_, lost := errors.AsType[*driver.Loss](err)
	o := renewError
	switch {
	case late:
		o = renewLate
	case err == nil:
		o = renewRenewed
	case lost:
		o = renewLost
	case busy(err):
		o = renewBusy
	}
	m.renewals[o].Inc()
}

// release counts the answer of a tenure's Release.
func (m *metrics) release(o releaseOutcome) {
	if m != nil {
		m.releases[o].Inc()
	}
}

// handedOn counts a release that needed no server.
func (m *metrics) handedOn() {
	if m != nil {
		m.releases[releaseReleased].Inc()
		m.handoffs.Inc()
	}
}

// countRelease counts the server's answer, and the tenure as lost when nothing
// had said so before.
func (t *tenure) countRelease(err error) {
	m := t.locker.metrics
	if m == nil {
		return
	}
	_, lost := errors.AsType[*driver.Loss](err)
	switch {
	case err == nil:
		m.release(releaseReleased)
		return
	case !lost:
		m.release(releaseUnknown)
		return
	}
	m.release(releaseLost)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == nil {
		t.isLost(err)
	}
}
