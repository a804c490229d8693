// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// checkLimit bounds the start-up questions: some forty round trips.
const checkLimit = 10 * time.Second

// readiness asks the start-up questions once: until the authority has answered
// them well no lease is granted, whether or not anybody called Check. They are
// asked behind the callers, who wait for the answer within their own bounds:
// on a slow network those who only try would never live to see it.
type readiness struct {
	yes atomic.Bool

	mu     sync.Mutex
	asking *check // nil when nobody asks
}

// check is one round of questions.
type check struct {
	done chan struct{}
	err  error // set before done is closed
}

func (r *readiness) check(ctx context.Context, l *Locker) error {
	if r.yes.Load() {
		return nil
	}
	c := r.join(l)
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join returns the round under way, or starts one.
func (r *readiness) join(l *Locker) *check {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking != nil {
		return r.asking
	}
	c := &check{done: make(chan struct{})}
	r.asking = c
	l.behind.run(func() {
		ctx, cancel := context.WithTimeout(l.closing, checkLimit)
		defer cancel()
		c.err = l.authority.Check(ctx)
		switch {
		case c.err == nil:
			r.yes.Store(true)
		case l.closing.Err() != nil:
			c.err = ErrClosed
		}
		r.mu.Lock()
		r.asking = nil
		r.mu.Unlock()
		close(c.done)
		if c.err == nil && l.filter != nil {
			l.checkFilter()
		}
	})
	return c
}

func (l *Locker) checkFilter() {
	ctx, cancel := context.WithTimeout(l.closing, boundWithoutContext)
	defer cancel()
	if err := l.filter.Check(ctx); err != nil && l.closing.Err() == nil {
		l.log.Warn("redis filter is not ready; locking goes on through the authority", zap.Error(err))
	}
}
