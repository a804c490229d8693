// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"fmt"
	"slices"
	"sync"
)

// queues holds one line of callers per key. Only the head of a line talks to
// the servers, so that a thousand goroutines that want one key cost the
// servers as much as one (faults.md H5).
//
// A turn passes through these states, always under the line's mutex:
//
//	waiting --(the one before leaves, or hands on)--> head --(its release was answered)--> ending
//	   any of them --leave--> gone
//	   head --(hands what it holds to the next)--> gone
//
// A head stays head while it asks and while it holds. In "ending" it holds
// nothing any more, and only its mark is still being cleared: a caller who does
// not want to wait for another holder may wait for that.
type queues struct {
	maxWaiters int
	signals    sync.Pool // of turns that have become head, empty again

	mu      sync.Mutex
	lines   map[string]*line
	watches map[string]*watchers // of keys that may have no line
}

// line is the queue of one key. It exists while anybody is in it.
type line struct {
	turns []*turn // the head first
	alone [1]*turn
	fault error // the authority's, as its head last met it; nil after an answer
}

type turnState uint8

const (
	turnWaiting turnState = iota
	turnHead
	turnEnding
	turnGone
)

// turn is one caller's place in a line.
type turn struct {
	queues *queues
	key    string
	state  turnState
	held   bool          // it was granted the key
	yields bool          // other processes come first when it has left
	late   bool          // it gives them time for that
	ready  chan struct{} // told once, when the turn becomes head; nil when it was at once
	tenure *tenure       // what it is to become
}

func newQueues(maxWaiters int) *queues {
	return &queues{maxWaiters: maxWaiters, lines: make(map[string]*line), watches: make(map[string]*watchers)}
}

// enter takes the last place in the key's line, or returns ErrHeld when the
// line is full or when patient is false and somebody holds, asks or waits.
func (q *queues) enter(t *turn, patient bool) error {
	key := t.key
	q.mu.Lock()
	defer q.mu.Unlock()
	ln := q.lines[key]
	if ln == nil {
		ln = &line{}
		ln.turns = ln.alone[:0]
		q.lines[key] = ln
	}
	if !patient && len(ln.turns) > 0 && (len(ln.turns) > 1 || ln.turns[0].state != turnEnding) {
		return fmt.Errorf("%w: a caller of this process has the key", ErrHeld)
	}
	if len(ln.turns) > q.maxWaiters { // its head is none
		return fmt.Errorf("%w: %d callers of this process wait for the key, more are not allowed", ErrHeld, q.maxWaiters)
	}
	t.queues = q
	if len(ln.turns) > 0 {
		t.ready = q.signal()
	}
	ln.turns = append(ln.turns, t)
	ln.promote()
	return nil
}

// promote makes the first of the line its head.
func (ln *line) promote() {
	first := ln.turns[0]
	if first.state != turnWaiting {
		return
	}
	first.state = turnHead
	if first.ready != nil {
		first.ready <- struct{}{}
	}
}

// signal has room for the one word that a turn is told, so that nobody waits to
// tell it.
func (q *queues) signal() chan struct{} {
	if c, ok := q.signals.Get().(chan struct{}); ok {
		return c
	}
	return make(chan struct{}, 1)
}

// waits reports whether somebody was ahead when the turn entered.
func (t *turn) waits() bool { return t.ready != nil }

// heard gives the signal back. Only who has received it may call it: the turn is
// told no more.
func (t *turn) heard() { t.queues.signals.Put(t.ready) }

// pass makes the next in line the head, with what the head holds, and lets the
// head go. It returns nil when nobody waits who can take it.
func (t *turn) pass(h *holding) *tenure {
	q := t.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	ln := q.lines[t.key]
	if t.state != turnHead || len(ln.turns) < 2 {
		return nil
	}
	next := ln.turns[1]
	if !h.take(next.tenure) {
		return nil
	}
	t.state, next.state, next.held = turnGone, turnHead, true
	ln.turns = slices.Delete(ln.turns, 0, 1)
	ln.fault = nil
	next.ready <- struct{}{}
	return next.tenure
}

// givesWay lets other processes come first when the turn has left.
func (t *turn) givesWay() {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	t.yields = true
}

// handed reports that the one before has handed on what it held. Of a turn that
// is the head that does not change.
func (t *turn) handed() bool {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	return t.tenure.holding != nil
}

// report tells those behind what the head met at the authority.
func (t *turn) report(fault error) {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	if ln := t.queues.lines[t.key]; ln != nil {
		ln.fault = fault
	}
}

// inTheWay is what kept a turn waiting.
func (t *turn) inTheWay() obstacle {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	return obstacle{
		refusal: fmt.Errorf("%w: callers of this process were ahead", ErrHeld),
		fault:   t.queues.lines[t.key].fault,
	}
}

// granted says that the head holds the key.
func (t *turn) granted() {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	t.held = true
	if ln := t.queues.lines[t.key]; ln != nil {
		ln.fault = nil
	}
}

// ending says that the head holds nothing any more.
func (t *turn) ending() {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	if t.state == turnHead {
		t.state = turnEnding
	}
}

// leave gives the place up, from whatever state, and lets the next one go
// ahead. It may be called more than once.
func (t *turn) leave() {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	t.depart()
}

// withdraw gives the place of one who waits up, unless he was handed what the one
// before has held: then it is his to give back.
func (t *turn) withdraw() (handed bool) {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	if t.tenure.holding != nil {
		return true
	}
	if t.state == turnWaiting {
		t.depart()
	}
	return false
}

// depart is leave for callers who hold the mutex.
func (t *turn) depart() {
	q := t.queues
	if t.state == turnGone {
		return
	}
	t.state = turnGone
	ln := q.lines[t.key]
	i := slices.Index(ln.turns, t)
	ln.turns = slices.Delete(ln.turns, i, i+1)
	if len(ln.turns) == 0 {
		delete(q.lines, t.key)
		if t.held { // who was refused has no news
			q.tell(t.key)
		}
		return
	}
	if i == 0 {
		ln.turns[0].late = t.yields
	}
	ln.promote()
}

// len returns how many keys have a line.
func (q *queues) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines)
}
