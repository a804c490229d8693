// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"slices"
	"time"
)

// Change is a tier going from one state to another.
type Change struct {
	Tier     string
	From, To State
	At       time.Time
	// Cause is the latest failure, reported or probed; nil when To is Closed.
	Cause error
}

// listener is told of changes by a goroutine that lives while there are any to
// tell. Its fields are under the mutex of its Health.
type listener struct {
	health *Health
	tell   func(Change)
	queue  []Change
	busy   bool
}

// Listen has f called with every change from now on, in their order and one at a
// time. f may block and may call anything of Health, stop and Close included: it
// delays nobody but itself, and what it has not seen yet is kept for it.
//
// After stop, or Close, no further call of f begins; one that is under way is
// not waited for. To miss nothing, listen first and then look at State.
func (h *Health) Listen(f func(Change)) (stop func()) {
	l := &listener{health: h, tell: f}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners = append(h.listeners, l)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		l.queue = nil
		h.listeners = slices.DeleteFunc(h.listeners, func(other *listener) bool { return other == l })
	}
}

// publish queues c for every listener; under h.mu.
func (h *Health) publish(c Change) {
	for _, l := range h.listeners {
		l.queue = append(l.queue, c)
		if !l.busy {
			l.busy = true
			go l.run()
		}
	}
}

func (l *listener) run() {
	drained := false
	defer func() {
		if !drained { // the listener ended this goroutine
			go l.run()
		}
	}()
	for c, ok := l.next(); ok; c, ok = l.next() {
		l.tell(c)
	}
	drained = true
}

// next returns the oldest change that l has not been told.
func (l *listener) next() (Change, bool) {
	l.health.mu.Lock()
	defer l.health.mu.Unlock()
	if len(l.queue) == 0 {
		l.queue = nil
		l.busy = false
		return Change{}, false
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, true
}
