// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"slices"
	"sync"
	"time"
)

// lane is a queue whose calls go to the server together: what queued while
// the last batch ran goes with the next, and no timer holds anything back.
// It has a session while there is work, and for a second after.
type lane[C any] struct {
	from *sessions
	op   string
	// limit bounds the wait for a session.
	limit func(batch []C) time.Duration
	// unwanted says that nobody waits for the call, or has answered it.
	unwanted func(C) bool
	// pick splits the queue into the next batch and the rest.
	pick func(queue []C) (batch, rest []C)
	// run answers every call of the batch.
	run func(s *session, batch []C)
	// fail answers them all when there is no session; nothing was sent.
	fail func(batch []C, err error)

	mu    sync.Mutex
	queue []C
	work  chan struct{} // wakes the loop
	stop  chan struct{} // closed: end when the queue is empty
}

// keepFor is how long an idle lane keeps its session.
const keepFor = time.Second

func (l *lane[C]) open() *lane[C] {
	l.work = make(chan struct{}, 1)
	l.stop = make(chan struct{})
	return l
}

// add queues calls. They must have been validated.
func (l *lane[C]) add(calls ...C) {
	l.mu.Lock()
	l.queue = append(l.queue, calls...)
	l.mu.Unlock()
	l.rouse()
}

func (l *lane[C]) rouse() {
	select {
	case l.work <- struct{}{}:
	default: // a wake-up is already under way
	}
}

func (l *lane[C]) next() []C {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = slices.DeleteFunc(l.queue, l.unwanted)
	if len(l.queue) == 0 {
		return nil
	}
	batch, rest := l.pick(l.queue)
	l.queue = rest
	return batch
}

// loop is the lane's goroutine. It ends when stop is closed and nothing is
// queued.
func (l *lane[C]) loop() {
	var s *session
	defer func() {
		if s != nil {
			s.giveBack()
		}
	}()
	idle := time.NewTimer(keepFor)
	defer idle.Stop()
	for {
		batch := l.next()
		if len(batch) == 0 {
			var tired <-chan time.Time
			if s != nil {
				idle.Reset(keepFor)
				tired = idle.C
			}
			select {
			case <-l.work:
			case <-tired:
				s.giveBack()
				s = nil
			case <-l.stop:
				if l.empty() {
					return
				}
			}
			continue
		}
		if s != nil && s.stale() {
			s.bad = true
			s.giveBack()
			s = nil
		}
		if s == nil {
			var err error
			if s, err = l.from.take(l.op, l.limit(batch)); err != nil {
				l.fail(batch, err)
				continue
			}
			// That may have taken a while.
			if batch = slices.DeleteFunc(batch, l.unwanted); len(batch) == 0 {
				continue
			}
		}
		l.from.metrics.batch(l.op, len(batch))
		l.run(s, batch)
		if s.bad {
			s.giveBack()
			s = nil
		}
	}
}

func (l *lane[C]) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) == 0
}

// pickBy makes a pick that takes, from the front, calls of the first one's
// group with distinct keys, at most so many.
func pickBy[C any, G comparable](most int, group func(C) G, key func(C) string) func([]C) ([]C, []C) {
	return func(queue []C) (batch, rest []C) {
		keys := make(map[string]struct{}, min(len(queue), most))
		var of G
		for _, c := range queue {
			if len(batch) == 0 {
				of = group(c)
			}
			_, twice := keys[key(c)]
			if len(batch) == most || twice || group(c) != of {
				rest = append(rest, c)
				continue
			}
			keys[key(c)] = struct{}{}
			batch = append(batch, c)
		}
		return batch, rest
	}
}
