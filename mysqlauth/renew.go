// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

// renewCall is one lease of a caller's renewal.
type renewCall struct {
	driver.Renewal
	part uint64 // of a halved batch
	to   *renewals
	at   int // its place in the answer
}

// renewals collect the answers of one call of Renew.
type renewals struct {
	mu      sync.Mutex
	answers []driver.Renewed
	open    map[int]struct{}
	done    chan struct{}
}

// minRenewLimit is the least time a renewal has on the server.
const minRenewLimit = 100 * time.Millisecond

// renewLimit is a sixth of the least TTL, and no more than any other statement
// has: all renewals of a process share one lane, and one silent connection
// would hold up those with a short TTL for a sixth of the longest.
func (a *Authority) renewLimit(batch []*renewCall) time.Duration {
	least := batch[0].TTL
	for _, c := range batch {
		least = min(least, c.TTL)
	}
	return min(max(least/6, minRenewLimit), a.timeout)
}

func newRenews(a *Authority) *lane[*renewCall] {
	type kind struct {
		ttl  time.Duration
		part uint64
	}
	l := &lane[*renewCall]{
		from:     a.sessions,
		op:       "renew",
		limit:    a.renewLimit,
		unwanted: (*renewCall).tooLate,
		pick: pickBy(maxRenewals,
			func(c *renewCall) kind { return kind{c.TTL, c.part} },
			func(c *renewCall) string { return c.Key }),
		run: a.runRenews,
		fail: func(batch []*renewCall, err error) {
			for _, c := range batch {
				c.end(driver.Renewed{Err: err})
			}
		},
	}
	return l.open()
}

// Renew implements [driver.Authority].
func (a *Authority) Renew(ctx context.Context, rs []driver.Renewal) []driver.Renewed {
	to := &renewals{
		answers: make([]driver.Renewed, len(rs)),
		open:    make(map[int]struct{}, len(rs)),
		done:    make(chan struct{}),
	}
	if !a.ledger.enter() {
		to.rest(classify("renew", ErrClosed), len(rs))
		return to.answers
	}
	defer a.ledger.leave()
	calls := make([]*renewCall, 0, len(rs))
	for i, r := range rs {
		err := checkKey(r.Key)
		if err == nil {
			err = checkTTL(r.TTL)
		}
		if err != nil {
			to.answers[i].Err = classify("renew", err)
			continue
		}
		to.open[i] = struct{}{}
		calls = append(calls, &renewCall{Renewal: r, to: to, at: i})
	}
	if len(calls) == 0 {
		return to.answers
	}
	a.renews.add(calls...)
	_, err := await(ctx, a, "renew", to.done)
	return to.take(err)
}

func (t *renewals) rest(err error, n int) {
	for i := range n {
		t.answers[i].Err = err
	}
}

// take returns the answers; those still open get err.
func (t *renewals) take(err error) []driver.Renewed {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.open {
		t.answers[i].Err = err
	}
	t.open = nil // what comes later is dropped
	return t.answers
}

func (c *renewCall) end(answer driver.Renewed) {
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	if _, open := c.to.open[c.at]; !open {
		return
	}
	c.to.answers[c.at] = answer
	delete(c.to.open, c.at)
	if len(c.to.open) == 0 {
		close(c.to.done)
	}
}

// tooLate answers a renewal whose lease has expired by its own clock; nothing
// is sent for it.
func (c *renewCall) tooLate() bool {
	if time.Now().Before(c.Until) {
		return false
	}
	c.end(driver.Renewed{Err: &driver.Error{Tier: "mysql", Op: "renew", Class: driver.ClassTransient, Err: errNotSent}})
	return true
}

// errNotSent is no loss: the server was not asked, and another renewal of the
// same lease may have moved its expiry.
var errNotSent = errors.New("not sent, the lease has expired by the local clock")

func (a *Authority) runRenews(s *session, batch []*renewCall) {
	limit := a.renewLimit(batch)
	ttl := batch[0].TTL
	ours := make([]pair, len(batch))
	keys := make([]string, len(batch))
	for i, c := range batch {
		ours[i], keys[i] = pair{c.Key, c.Token}, c.Key
	}
	before := s.clock
	var sent time.Time
	var renewed int64
	err := s.again(&a.retried, func() error {
		sent = time.Now()
		args := a.tables.renewArgs(ours, s.clock.at(sent)+limit.Microseconds(), ttl)
		result, err := s.run(limit, a.tables.renew(len(ours)), args...)
		if err != nil {
			return err
		}
		if micros, err := result.LastInsertId(); err == nil && micros > 0 {
			s.clock.set(micros, sent)
		}
		renewed, err = result.RowsAffected()
		return err
	})
	if err != nil {
		a.renewFailed(batch, err)
		return
	}
	if renewed == int64(len(batch)) { // each pair is one row at most: all of them were ours
		a.watchClock(before, s.clock, time.Now(), ttl)
		for _, c := range batch {
			c.end(driver.Renewed{Until: sent.Add(ttl)})
		}
		return
	}
	r, err := s.read(limit, keys)
	if err != nil {
		a.renewFailed(batch, err)
		return
	}
	received := time.Now()
	a.watchClock(before, s.clock, received, ttl)
	for _, c := range batch {
		c.end(c.renewed(r, sent, received))
	}
}

// renewed is the answer as the row shows it, whether or not the update changed
// it: what it has left is never more than what the caller may count on.
func (c *renewCall) renewed(r reading, sent, received time.Time) driver.Renewed {
	if loss := lossOf(r, c.Key, c.Token); loss != nil {
		return driver.Renewed{Err: loss}
	}
	left := r.rows[c.Key].left
	// A row that was updated has its TTL left, but for what passed since.
	if left < c.TTL-received.Sub(sent)-time.Millisecond {
		return driver.Renewed{Err: &driver.Refusal{Busy: true}} // skipped: it is locked
	}
	until := sent.Add(c.TTL)
	if read := r.sent.Add(left); read.Before(until) {
		until = read
	}
	return driver.Renewed{Until: until}
}

func (a *Authority) renewFailed(batch []*renewCall, err error) {
	if answered(err) && len(batch) > 1 {
		// One row may be why: halve until it is found.
		first, second := a.part.Add(1), a.part.Add(1)
		for i, c := range batch {
			c.part = first
			if i >= len(batch)/2 {
				c.part = second
			}
		}
		a.renews.add(batch...)
		return
	}
	answer := driver.Renewed{Err: unknownUnlessProved("renew", err)}
	if rolledBack(err) {
		answer.Err = &driver.Refusal{Busy: true}
	}
	for _, c := range batch {
		c.end(answer)
	}
}

// watchClock counts a forward step of the server's clock by more than half the
// least margin a lease of this TTL has. It ends nothing: the fence holds.
func (a *Authority) watchClock(before, after clock, received time.Time, ttl time.Duration) {
	margin := max(ttl/10, 50*time.Millisecond)
	step := before.step(after.micros, received)
	if step <= margin/2 {
		return
	}
	a.steps.Add(1)
	a.metrics.step()
	a.log.Warn("the clock of the MySQL server stepped forward: leases expire early by as much", zap.Duration("step", step))
}
