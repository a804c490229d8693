// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"fmt"
	"slices"
)

// watch is a caller's wait for any of several keys. It has a place in none of
// their lines: it is told when this process gave one back and nobody is in line
// for it, or when a message says that another process did. Of all who watch a
// key one is told each time; who is told and does not try passes the news on.
type watch struct {
	locker *Locker
	keys   []string
	told   chan struct{} // holds one value while news is not empty

	// Keys it was told of and has not taken, and those it took last; under the
	// queues' mutex.
	news, taken []string
}

// watchers are all who watch a key, the next to be told first. They share one
// listener to the filter's messages.
type watchers struct {
	all  []*watch
	gone chan struct{} // closed with the last
}

// watch begins one, or returns ErrHeld when too many callers watch a key.
func (l *Locker) watch(keys []string) (*watch, error) {
	q := l.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range keys {
		if ws := q.watches[key]; ws != nil && len(ws.all) >= q.maxWaiters {
			return nil, fmt.Errorf("%w: %d callers of this process wait for it among others, more are not allowed", ErrHeld, q.maxWaiters)
		}
	}
	w := &watch{locker: l, keys: keys, told: make(chan struct{}, 1)}
	for _, key := range keys {
		ws := q.watches[key]
		if ws == nil {
			ws = &watchers{gone: make(chan struct{})}
			q.watches[key] = ws
			if l.hears(l.policies.Load().find(key)) {
				l.behind.run(func() { l.listen(key, ws.gone) })
			}
		}
		ws.all = append(ws.all, w)
	}
	return w, nil
}

// listen tells a key's watchers, one for each message, until the last is gone.
func (l *Locker) listen(key string, gone <-chan struct{}) {
	wake, stop := l.filter.Wakeups(l.fullKey(key))
	defer stop()
	for {
		select {
		case <-wake:
			l.queues.mu.Lock()
			l.queues.tell(key)
			l.queues.mu.Unlock()
		case <-gone:
			return
		}
	}
}

// tell tells the next watch of a key. The caller holds the mutex.
func (q *queues) tell(key string) {
	ws := q.watches[key]
	if ws == nil {
		return
	}
	w := ws.all[0]
	copy(ws.all, ws.all[1:])
	ws.all[len(ws.all)-1] = w
	if !slices.Contains(w.news, key) {
		w.news = append(w.news, key)
	}
	select {
	case w.told <- struct{}{}:
	default:
	}
}

// take returns what the watch was told of, to be tried now.
func (w *watch) take() []string {
	q := w.locker.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	w.news, w.taken = nil, w.news
	return w.taken
}

// stop ends the watch and passes on what it was told of and may not have tried.
func (w *watch) stop() {
	q := w.locker.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range w.keys {
		ws := q.watches[key]
		ws.all = slices.DeleteFunc(ws.all, func(other *watch) bool { return other == w })
		if len(ws.all) == 0 {
			close(ws.gone)
			delete(q.watches, key)
		}
	}
	for _, key := range append(w.taken, w.news...) {
		if q.lines[key] == nil {
			q.tell(key)
		}
	}
}
