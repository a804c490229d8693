// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// lookCall is a caller's look.
type lookCall struct {
	key    string
	answer chan lookAnswer
	left   atomic.Bool // nobody waits for the answer
}

type lookAnswer struct {
	row driver.Row
	err error
}

func newLooks(a *Authority) *lane[*lookCall] {
	l := &lane[*lookCall]{
		from:     a.sessions,
		op:       "look",
		limit:    func([]*lookCall) time.Duration { return a.timeout },
		unwanted: func(c *lookCall) bool { return c.left.Load() },
		pick: func(queue []*lookCall) (batch, rest []*lookCall) {
			n := min(len(queue), maxBatch)
			return queue[:n:n], queue[n:]
		},
		run: a.runLooks,
		fail: func(batch []*lookCall, err error) {
			for _, c := range batch {
				c.answer <- lookAnswer{err: err}
			}
		},
	}
	return l.open()
}

// Look implements [driver.Authority].
func (a *Authority) Look(ctx context.Context, key string) (driver.Row, error) {
	if err := checkKey(key); err != nil {
		return driver.Row{}, classify("look", err)
	}
	if !a.ledger.enter() {
		return driver.Row{}, classify("look", ErrClosed)
	}
	defer a.ledger.leave()
	call := &lookCall{key: key, answer: make(chan lookAnswer, 1)}
	a.looks.add(call)
	got, err := await(ctx, a, "look", call.answer)
	if err != nil {
		call.left.Store(true)
		return driver.Row{}, err
	}
	return got.row, got.err
}

// runLooks reads every key of the batch once, however many look at it.
func (a *Authority) runLooks(s *session, batch []*lookCall) {
	distinct := make(map[string]struct{}, len(batch))
	var keys []string
	for _, c := range batch {
		if _, twice := distinct[c.key]; !twice {
			distinct[c.key] = struct{}{}
			keys = append(keys, c.key)
		}
	}
	r, err := s.read(a.timeout, keys)
	for _, c := range batch {
		if err != nil {
			// A read that fails has changed nothing.
			c.answer <- lookAnswer{err: unreachable("look", err)}
			continue
		}
		c.answer <- lookAnswer{row: r.rows[c.key].public(r.sent)}
	}
}

// public is the row as the contract describes it. The zero row is free.
func (r row) public(sent time.Time) driver.Row {
	if r.token.IsZero() {
		return driver.Row{Fence: r.fence}
	}
	left := max(0, r.left)
	return driver.Row{
		Held: r.held(), Token: r.token, Fence: r.fence, Holder: r.holder,
		Left: left, Until: sent.Add(left),
	}
}
