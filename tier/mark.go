// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// markWriter keeps a tenure's writes to the filter one after another, and none
// after its delete. The fields are under the tenure's mutex.
type markWriter struct {
	refreshing bool // a renewal is writing the mark
	clear      bool // the mark is to be deleted; nothing else may write it
}

// startRefresh reports whether the mark may be written now; the caller then
// calls endRefresh. The caller holds the mutex.
func (t *tenure) startRefresh() bool {
	if t.marks.clear || t.marks.refreshing || t.locker.filter == nil {
		return false
	}
	t.marks.refreshing = true
	return true
}

// endRefresh makes up for a delete that had to wait.
func (t *tenure) endRefresh() {
	t.mu.Lock()
	t.marks.refreshing = false
	last := t.marks.clear
	t.mu.Unlock()
	if last {
		t.lastMark()
	}
}

// clearMark deletes the mark behind the caller, once, after what is writing it
// now. The caller holds the mutex.
func (t *tenure) clearMark() {
	if t.locker.filter == nil || t.marks.clear {
		return
	}
	t.marks.clear = true
	if !t.marks.refreshing {
		t.locker.clearBehind(t.full, t.mark.Token)
	}
}

// markAfterRelease deletes the mark and wakes who waits. It does so a second
// time for a lease that was lost and cleared before, since those who woke up
// then may have found the row still held.
func (t *tenure) markAfterRelease() {
	if t.locker.filter == nil {
		return
	}
	t.mu.Lock()
	t.marks.clear = true
	wait := t.marks.refreshing
	t.mu.Unlock()
	if !wait {
		t.lastMark()
	}
}

// lastMark is the last write to the filter: the delete, or, where MinHold keeps
// the row held after its release, what is left of that; it then wakes nobody.
func (t *tenure) lastMark() {
	t.mu.Lock()
	released := t.state == tenureEnding
	t.mu.Unlock()
	if left := time.Until(t.granted.Add(t.terms.minHold)); released && t.terms.minHold > 0 && left > 0 {
		t.locker.keepMark(t.full, driver.Mark{Token: t.mark.Token, TTL: left})
		return
	}
	t.locker.clear(t.full, t.mark.Token)
}

func (l *Locker) keepMark(full string, m driver.Mark) {
	ctx, cancel := context.WithTimeout(context.Background(), boundWithoutContext)
	defer cancel()
	if _, err := l.filter.Extend(ctx, full, m); err != nil {
		l.filterIn.failed(err)
	}
}
