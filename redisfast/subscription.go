// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

const (
	// wakeIdle is how long a connection nobody needs is kept for the next waiter.
	wakeIdle = 5 * time.Second
	// wakePing is how often a quiet connection is asked for a sign of life. One
	// that gives none until the next time is given up.
	wakePing = 2 * time.Second
	// wakeIO bounds a dial and a write of the connection.
	wakeIO = 2 * time.Second

	wakePause    = 50 * time.Millisecond
	wakePauseMax = time.Second

	// wakeBatch is how many channels one SUBSCRIBE names.
	wakeBatch = 500
)

var (
	errWakeSilent = errors.New("the connection gives no sign of life")
	errWakeIdle   = errors.New("nobody waits")
)

// outage is what is known about a server that does not serve subscriptions.
type outage struct {
	warned bool
	pause  time.Duration
	until  time.Time // no attempt before
}

// run keeps a session going while there are waiters, and makes a new one, after
// a pause that doubles, whenever one ends.
func (w *wakeups) run() {
	defer w.work.Done()
	for w.wanted() {
		if wait := time.Until(w.outage.until); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-w.base.Done():
				timer.Stop()
			}
			continue // perhaps nobody waits any more
		}
		begun := time.Now()
		err := newSubscription(w).serve()
		if errors.Is(err, errWakeIdle) || w.base.Err() != nil {
			continue
		}
		w.interrupted(err, time.Since(begun))
	}
}

// interrupted notes a session that ended after some time.
func (w *wakeups) interrupted(err error, lasted time.Duration) {
	o := &w.outage
	o.pause = min(max(2*o.pause, wakePause), wakePauseMax)
	if lasted > wakePauseMax {
		o.pause = wakePause
	}
	o.until = time.Now().Add(o.pause/2 + rand.N(o.pause/2))
	if !o.warned {
		o.warned = true
		w.log.Warn("redis wake-ups are interrupted; waiters poll", zap.Error(fault("subscribe", err)))
	}
}

// served notes that the server answers on a session.
func (w *wakeups) served() {
	if w.outage.warned {
		w.outage.warned = false
		w.log.Info("redis wake-ups are back")
	}
}

// wanted reports whether run shall go on, and prepares the next session: nothing
// is confirmed, and everything wanted is to be subscribed.
func (w *wakeups) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.confirmed)
	clear(w.changed)
	for channel := range w.topics {
		w.changed[channel] = struct{}{}
	}
	w.running = len(w.topics) > 0 && w.base.Err() == nil
	return w.running
}

// subscription is one session: a connection and what was subscribed on it. It
// never lives on after an error: go-redis would reconnect on its own, without a
// pause and without telling whether messages were missed.
type subscription struct {
	w      *wakeups
	pubsub *redis.PubSub
	// subscribed is what was asked for on this connection; only serve's
	// goroutine touches it.
	subscribed map[string]struct{}
	heard      atomic.Int64 // answers so far
}

func newSubscription(w *wakeups) *subscription {
	return &subscription{w: w, subscribed: make(map[string]struct{})}
}

// serve works until the connection fails, nobody has waited for a while, or the
// filter is closed.
func (s *subscription) serve() error {
	ctx, cancel := context.WithCancel(s.w.base)
	s.pubsub = s.w.client.Subscribe(ctx) // no channels yet: no I/O
	var reader sync.WaitGroup
	defer func() {
		// The context first: it ends a dial that holds the lock Close needs.
		cancel()
		_ = s.pubsub.Close()
		reader.Wait()
	}()

	// The connection begins with the first SUBSCRIBE, so that the client of a
	// cluster has a channel to choose a node by.
	if err := s.align(ctx); err != nil {
		return err
	}
	failed := make(chan error, 1)
	answered := make(chan struct{}, 1)
	reader.Go(func() { failed <- s.read(ctx, answered) })

	ping := time.NewTicker(wakePing)
	defer ping.Stop()
	idle := time.NewTimer(wakeIdle)
	defer idle.Stop()
	heard := int64(-1)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-answered:
			s.w.served()
		case <-s.w.kick:
			if err := s.align(ctx); err != nil {
				return err
			}
			idle.Reset(wakeIdle)
		case <-idle.C:
			if len(s.subscribed) == 0 {
				return errWakeIdle
			}
			idle.Reset(wakeIdle)
		case <-ping.C:
			now := s.heard.Load()
			if now == heard {
				return errWakeSilent
			}
			heard = now
			if err := s.bounded(ctx, func(ctx context.Context) error { return s.pubsub.Ping(ctx) }); err != nil {
				return err
			}
		}
	}
}

// align brings the connection in line with what is wanted.
func (s *subscription) align(ctx context.Context) error {
	begin, end := s.differences()
	for len(end) > 0 {
		n := min(len(end), wakeBatch)
		err := s.bounded(ctx, func(ctx context.Context) error { return s.pubsub.Unsubscribe(ctx, end[:n]...) })
		if err != nil {
			return err
		}
		end = end[n:]
	}
	for len(begin) > 0 {
		n := min(len(begin), wakeBatch)
		err := s.bounded(ctx, func(ctx context.Context) error { return s.pubsub.Subscribe(ctx, begin[:n]...) })
		if err != nil {
			return err
		}
		begin = begin[n:]
	}
	return nil
}

// differences takes the changes and returns what to subscribe and unsubscribe.
// A channel that was ended and begun again between two looks keeps its
// subscription.
func (s *subscription) differences() (begin, end []string) {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel := range w.changed {
		_, have := s.subscribed[channel]
		_, want := w.topics[channel]
		switch {
		case want && !have:
			begin = append(begin, channel)
			s.subscribed[channel] = struct{}{}
		case !want && have:
			end = append(end, channel)
			delete(s.subscribed, channel)
			delete(w.confirmed, channel)
		}
	}
	clear(w.changed)
	return begin, end
}

func (s *subscription) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, wakeIO)
	defer cancel()
	return do(ctx)
}

// read passes on what the server sends, until the connection fails.
func (s *subscription) read(ctx context.Context, answered chan<- struct{}) error {
	for {
		msg, err := s.pubsub.Receive(ctx)
		if err != nil {
			return err
		}
		if s.heard.Add(1) == 1 {
			answered <- struct{}{}
		}
		switch m := msg.(type) {
		case *redis.Subscription:
			s.w.confirm(m.Channel, m.Kind == "subscribe")
		case *redis.Message:
			s.w.message(m.Channel)
		}
	}
}
