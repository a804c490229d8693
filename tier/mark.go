// SPDX-License-Identifier: Apache-2.0

package tier

// markWriter keeps a lease's writes to the filter one after another, and none
// after its delete. The fields are under the lease's mutex.
type markWriter struct {
	refreshing bool // a renewal is writing the mark
	clear      bool // the mark is to be deleted; nothing else may write it
}

// startRefresh reports whether the mark may be written now; the caller then
// calls endRefresh. The caller holds the mutex.
func (l *Lease) startRefresh() bool {
	if l.marks.clear || l.marks.refreshing || l.locker.filter == nil {
		return false
	}
	l.marks.refreshing = true
	return true
}

// endRefresh makes up for a delete that had to wait.
func (l *Lease) endRefresh() {
	l.mu.Lock()
	l.marks.refreshing = false
	clear := l.marks.clear
	l.mu.Unlock()
	if clear {
		l.locker.clear(l.full, l.mark.Token)
	}
}

// clearMark deletes the mark behind the caller, once, after what is writing it
// now. The caller holds the mutex.
func (l *Lease) clearMark() {
	if l.locker.filter == nil || l.marks.clear {
		return
	}
	l.marks.clear = true
	if !l.marks.refreshing {
		l.locker.clearBehind(l.full, l.mark.Token)
	}
}

// clearAfterRelease deletes the mark and wakes who waits. It does so a second
// time for a lease that was lost and cleared before, since those who woke up
// then may have found the row still held.
func (l *Lease) clearAfterRelease() {
	if l.locker.filter == nil {
		return
	}
	l.mu.Lock()
	l.marks.clear = true
	wait := l.marks.refreshing
	l.mu.Unlock()
	if !wait {
		l.locker.clear(l.full, l.mark.Token)
	}
}
