// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// markWriter keeps a tenure's writes to the filter one after another, and none
// after its last. The fields are under the tenure's mutex.
type markWriter struct {
	refreshing bool // a renewal is writing the mark
	keep       bool // the release was answered: MinHold keeps the row
	last       bool // its last write is due or done: nothing else may write it
}

// marked reports whether there is a mark beside what stands behind it.
func (h *holding) marked() bool {
	return h.locker.filter != nil && h.policy.Tiers == TiersBoth
}

// startRefresh reports whether the mark may be written now; the caller then
// calls endRefresh. The caller holds the mutex.
func (h *holding) startRefresh() bool {
	if h.marks.last || h.marks.refreshing || !h.marked() {
		return false
	}
	h.marks.refreshing = true
	return true
}

// endRefresh makes up for a last write that had to wait.
func (h *holding) endRefresh() {
	h.mu.Lock()
	defer h.unlock()
	h.marks.refreshing = false
	if h.marks.last {
		h.current.finishMark()
	}
}

// finishMark writes the mark for the last time, behind the caller and after
// what is writing it now, and then leaves the line: the next of this process
// would be refused by our own mark. A tenure that was lost does so twice, the
// second time when it is released, since those who woke up before may have
// found the row still held. The caller holds the mutex.
func (t *tenure) finishMark() {
	t.marks.last = true
	if t.marks.refreshing {
		return
	}
	var keep time.Duration
	if t.marks.keep && t.terms.minHold > 0 {
		keep = time.Until(t.granted.Add(t.terms.minHold))
	}
	promoted := t.promotion.ended()
	t.locker.behind.run(func() {
		if promoted != nil {
			<-promoted // or the next of this process meets our own claim
		}
		switch {
		case !t.marked():
			t.turn.leave()
		case keep > 0:
			t.locker.keepMark(t.full, driver.Mark{Token: t.mark.Token, TTL: keep})
			t.turn.leave()
		default:
			t.locker.clearAndLeave(t.full, t.mark.Token, true, t.turn)
		}
	})
}

// keepMark leaves the mark of a lease that MinHold keeps held after its
// release, for what is left of that, and wakes nobody.
func (l *Locker) keepMark(full string, m driver.Mark) {
	ctx, cancel := context.WithTimeout(context.Background(), boundWithoutContext)
	defer cancel()
	_, _ = l.filter.Extend(ctx, full, m) // a mark is a hint
}
