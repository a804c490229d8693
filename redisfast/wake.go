// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// wakeups shares one subscription connection among all waiters of a process.
// What waiters want is kept here; a goroutine that lives while there are any
// brings a session in line with it.
//
// Waiters have channels of capacity 1, and nobody ever blocks on one: a value
// that is already there says all that a second would.
type wakeups struct {
	client redis.UniversalClient
	log    *zap.Logger

	base  context.Context // ends with close
	cease context.CancelFunc
	work  sync.WaitGroup
	kick  chan struct{} // something in changed

	mu      sync.Mutex
	topics  map[string]topic    // wanted, by channel
	changed map[string]struct{} // channels to bring in line
	// confirmed are the channels whose subscription the server has confirmed:
	// who comes later need not wait for it.
	confirmed map[string]struct{}
	running   bool
	closed    bool

	// outage belongs to the goroutine, and outlives it: waiters that come and go
	// while the server is down must neither hurry the next attempt nor fill the
	// log.
	outage outage
}

// topic is the waiters of one channel.
type topic map[chan struct{}]struct{}

func newWakeups(client redis.UniversalClient, log *zap.Logger) *wakeups {
	base, cease := context.WithCancel(context.Background())
	return &wakeups{
		client: client, log: log, base: base, cease: cease,
		kick:      make(chan struct{}, 1),
		topics:    make(map[string]topic),
		changed:   make(map[string]struct{}),
		confirmed: make(map[string]struct{}),
	}
}

// add makes a waiter of a channel. The one that stop ends is its own, however
// often it is called.
func (w *wakeups) add(channel string) (c <-chan struct{}, stop func()) {
	waiter := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return waiter, func() {}
	}
	t := w.topics[channel]
	if t == nil {
		t = make(topic)
		w.topics[channel] = t
		w.change(channel)
	}
	t[waiter] = struct{}{}
	if _, ok := w.confirmed[channel]; ok {
		waiter <- struct{}{} // it is new and empty
	}
	return waiter, func() { w.remove(channel, waiter) }
}

func (w *wakeups) remove(channel string, waiter chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[channel]
	if _, ok := t[waiter]; !ok {
		return // stopped before
	}
	delete(t, waiter)
	if len(t) == 0 {
		delete(w.topics, channel)
		w.change(channel)
	}
}

// change notes that a channel was begun or ended. w.mu is held.
func (w *wakeups) change(channel string) {
	w.changed[channel] = struct{}{}
	if !w.running {
		w.running = true
		w.work.Add(1)
		go w.run()
		return
	}
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// confirm notes what the server says about a channel's subscription. Answers
// come in the order of the requests, so the last one tells how things stand; a
// waiter that one of an earlier subscription reaches looks once too often.
func (w *wakeups) confirm(channel string, subscribed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !subscribed {
		delete(w.confirmed, channel)
		return
	}
	w.confirmed[channel] = struct{}{}
	w.topics[channel].signal()
}

// message wakes the waiters of a channel.
func (w *wakeups) message(channel string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.topics[channel].signal()
}

// signal gives a value to every waiter that has none.
func (t topic) signal() {
	for waiter := range t {
		select {
		case waiter <- struct{}{}:
		default:
		}
	}
}

// close ends everything; waiters keep their channels, which stay silent.
func (w *wakeups) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cease()
}

func (w *wakeups) wait() { w.work.Wait() }
