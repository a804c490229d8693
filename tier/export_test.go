// SPDX-License-Identifier: Apache-2.0

package tier

// Internals counts what must be empty when nothing is held.
func (l *Locker) Internals() (lines, held, due int) {
	l.renewer.mu.Lock()
	defer l.renewer.mu.Unlock()
	return l.queues.len(), len(l.renewer.held), len(l.renewer.due)
}
