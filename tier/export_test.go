// SPDX-License-Identifier: Apache-2.0

package tier

// Internals counts what must be empty when nothing is held.
func (l *Locker) Internals() (lines, held, due int) {
	l.renewer.mu.Lock()
	defer l.renewer.mu.Unlock()
	return l.queues.len(), len(l.renewer.held), len(l.renewer.due)
}

// Line is how many are in line for a key, its holder among them.
func (l *Locker) Line(key string) int {
	l.queues.mu.Lock()
	defer l.queues.mu.Unlock()
	if ln := l.queues.lines[key]; ln != nil {
		return len(ln.turns)
	}
	return 0
}
