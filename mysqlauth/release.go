// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// releaseCall is a release on its way: through the lane, and again after a
// failure, until it has an answer or the lease has surely expired. It runs
// detached from its caller.
type releaseCall struct {
	driver.Release
	debt   *debt
	answer chan error
	// maybe says that an attempt of unknown outcome may have freed the row.
	maybe bool
	last  error // of the last failed attempt
}

const (
	// retryRelease is the pause after a failed attempt.
	retryRelease = 250 * time.Millisecond
	// waitLimit bounds a statement that may wait a second for a row.
	waitLimit = 1500 * time.Millisecond
	// sureAfter is how long after its local expiry a lease has surely expired
	// on the server: a grant counts from its sending, and the server may have
	// executed it as late as its limit.
	sureAfter = 2 * time.Second
)

func newReleases(a *Authority) *lane[*releaseCall] {
	l := &lane[*releaseCall]{
		from:  a.sessions,
		limit: func([]*releaseCall) time.Duration { return a.timeout },
		// One key a statement: the number of affected rows is then exact, and
		// tells a release from a loss.
		pick: func(queue []*releaseCall) (batch, rest []*releaseCall) { return queue[:1:1], queue[1:] },
		run:  func(s *session, batch []*releaseCall) { a.runRelease(s, batch[0]) },
		fail: func(batch []*releaseCall, err error) { a.releaseLater(batch[0], err) },
	}
	return l.open()
}

// Release implements [driver.Authority].
func (a *Authority) Release(ctx context.Context, r driver.Release) error {
	if err := checkRelease(r); err != nil {
		return classify("release", err)
	}
	if !a.ledger.enter() {
		return classify("release", ErrClosed)
	}
	defer a.ledger.leave()
	answer, err := await(ctx, a, "release", a.giveBack(r).answer)
	if err != nil {
		return err // the work goes on
	}
	return answer
}

// giveBack releases in the background.
func (a *Authority) giveBack(r driver.Release) *releaseCall {
	call := &releaseCall{Release: r, debt: a.ledger.owe(r.Key), answer: make(chan error, 1)}
	a.releases.add(call)
	return call
}

func (c *releaseCall) end(err error) {
	c.answer <- err
	c.debt.paid()
}

// runRelease is one attempt that never waits for a locked row: others' keys
// are behind it in the queue.
func (a *Authority) runRelease(s *session, c *releaseCall) {
	statement, args := c.statement(a.tables)
	var freed int64
	err := s.again(&a.retried, func() (err error) {
		freed, err = s.exec(a.timeout, statement, args...)
		return err
	})
	if err != nil {
		a.releaseLater(c, err)
		return
	}
	if freed == 1 {
		c.end(nil)
		return
	}
	r, err := s.read(a.timeout, []string{c.Key})
	if err != nil {
		a.releaseLater(c, err)
		return
	}
	loss := lossOf(r, c.Key, c.Token)
	if loss == nil { // still ours: a transaction has the row
		a.releaseAlone(c)
		return
	}
	c.lost(loss)
}

// statement never waits. A token drawn for MinHold is never told to anybody.
func (c *releaseCall) statement(t tables) (string, []any) {
	args := pairArgs([]pair{{c.Key, c.Token}})
	if c.MinHold == 0 {
		return t.release(1), args
	}
	return t.keep(), append(args, c.keepArgs()...)
}

func (c *releaseCall) waitingStatement(t tables) (string, []any) {
	args := []any{[]byte(c.Key), c.Token[:]}
	if c.MinHold == 0 {
		return t.releaseWaiting(), args
	}
	return t.keepWaiting(), append(c.keepArgs(), args...)
}

func (c *releaseCall) keepArgs() []any {
	nobodys := driver.NewToken()
	return []any{c.MinHold.Microseconds(), nobodys[:], c.MinHold.Microseconds()}
}

// lost ends a release that found the lease gone. If an earlier attempt of this
// call may have been what freed it, it did.
func (c *releaseCall) lost(loss *driver.Loss) {
	if c.maybe && loss.Reason != driver.LossExpired {
		c.end(nil)
		return
	}
	c.end(loss)
}

// lossOf says how a lease was lost, or nil while it is ours.
func lossOf(r reading, key string, token driver.Token) *driver.Loss {
	row, found := r.rows[key]
	switch {
	case !found:
		return &driver.Loss{Reason: driver.LossFreed}
	case row.token.IsZero():
		return &driver.Loss{Reason: driver.LossFreed, Fence: row.fence}
	case row.token != token:
		return &driver.Loss{Reason: driver.LossTaken, Fence: row.fence}
	case row.left <= 0:
		return &driver.Loss{Reason: driver.LossExpired, Fence: row.fence}
	}
	return nil
}

// releaseLater tries again after a failed attempt, until the lease has surely
// expired.
func (a *Authority) releaseLater(c *releaseCall, err error) {
	c.failed(err)
	if c.expired() || a.life.Err() != nil {
		c.end(c.last)
		return
	}
	time.AfterFunc(retryRelease, func() { a.releases.add(c) })
}

// expired reports that the lease has surely expired on the server.
func (c *releaseCall) expired() bool { return time.Now().After(c.Until.Add(sureAfter)) }

func (c *releaseCall) failed(err error) {
	c.maybe = c.maybe || !proves(err)
	c.last = unknownUnlessProved("release", err)
}

func unknownUnlessProved(op string, err error) error {
	if proves(err) {
		return classify(op, err)
	}
	return unknown(op, err)
}

// releaseAlone waits for a row that somebody's transaction has locked, in a
// goroutine of its own: the lane's other keys do not wait with it.
func (a *Authority) releaseAlone(c *releaseCall) {
	a.running.Go(func() {
		for {
			freed, r, err := a.releaseWaiting(c)
			switch {
			case err != nil:
				c.failed(err)
			case freed:
				c.end(nil)
				return
			default:
				if loss := lossOf(r, c.Key, c.Token); loss != nil {
					c.lost(loss)
					return
				}
			}
			switch {
			case pause(a.life, retryRelease) != nil:
				c.end(classify("release", ErrClosed))
				return
			case c.expired() && c.last != nil:
				c.end(c.last)
				return
			}
		}
	})
}

func (a *Authority) releaseWaiting(c *releaseCall) (freed bool, r reading, err error) {
	s, err := a.sessions.borrow(a.life, a.timeout)
	if err != nil {
		return false, r, err
	}
	defer a.sessions.giveBackBorrowed(s)
	statement, args := c.waitingStatement(a.tables)
	affected, err := s.exec(waitLimit, statement, args...)
	if err != nil || affected == 1 {
		return affected == 1, r, err
	}
	r, err = s.read(a.timeout, []string{c.Key})
	return false, r, err
}
