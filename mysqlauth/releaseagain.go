// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// releaseLater tries again after a failed attempt, until the server answers.
func (a *Authority) releaseLater(c *releaseCall, err error) {
	if a.life.Err() != nil {
		c.giveUp(unknownUnlessProved("release", err))
		return
	}
	a.releaseAfter(c.pause(), c)
}

func (a *Authority) releaseAfter(d time.Duration, c *releaseCall) {
	time.AfterFunc(d, func() { a.releases.add(c) })
}

func (c *releaseCall) pause() time.Duration {
	if time.Now().After(c.Until) {
		return retryExpired
	}
	return retryRelease
}

// giveUp answers without having freed the key: Close names it.
func (c *releaseCall) giveUp(err error) { c.answer <- err }

func unknownUnlessProved(op string, err error) error {
	if proves(err) {
		return classify(op, err)
	}
	return unknown(op, err)
}

// busyTries is how often the lane asks for a locked row before anybody waits
// for it: a guarded transaction has it for a round trip or two.
const busyTries = 4

// releaseBusy goes on with a row that somebody's transaction has locked: soon
// again in the lane, which never waits; if it stays locked, by waiting for it in
// a goroutine of its own, so that the lane's other keys do not. When too many
// wait already the lane goes on asking.
func (a *Authority) releaseBusy(c *releaseCall) {
	c.busy++
	switch {
	case c.busy <= busyTries:
		a.releaseAfter(20*time.Millisecond+rand.N(30*time.Millisecond), c)
	case a.sessions.mayWait():
		a.running.Go(func() { a.releaseAlone(c) })
	default:
		a.releaseAfter(retryRelease, c)
	}
}

// releaseAlone waits once, for as long as the server lets a statement wait for
// a row, and then goes back to the lane.
func (a *Authority) releaseAlone(c *releaseCall) {
	freed, r, err := a.releaseWaiting(c)
	a.sessions.waited()
	switch loss := lossOf(r, c.Key, c.Token); {
	case rolledBack(err): // still locked
		a.releaseAfter(retryRelease, c)
	case err != nil:
		a.releaseLater(c, err)
	case freed:
		c.end(nil)
	case loss != nil:
		c.lost(loss)
	default:
		a.releaseAfter(retryRelease, c)
	}
}

func (a *Authority) releaseWaiting(c *releaseCall) (freed bool, r reading, err error) {
	s, err := a.sessions.borrow(a.life, "release", a.timeout)
	if err != nil {
		return false, r, err
	}
	defer a.sessions.giveBackBorrowed(s)
	statement, args := c.waitingStatement(a.tables)
	affected, err := s.exec(waitLimit, statement, args...)
	if err != nil {
		c.maybe = c.maybe || !proves(err)
		return false, r, err
	}
	if affected == 1 {
		return true, r, nil
	}
	r, err = s.read(a.timeout, []string{c.Key})
	return false, r, err
}

func (c *releaseCall) waitingStatement(t tables) (string, []any) {
	args := []any{[]byte(c.Key), c.Token[:]}
	if c.MinHold == 0 {
		return t.releaseWaiting(), args
	}
	return t.keepWaiting(), append(c.keepArgs(), args...)
}

// keepArgs draw a token that is never told to anybody.
func (c *releaseCall) keepArgs() []any {
	nobodys := driver.NewToken()
	return []any{c.MinHold.Microseconds(), nobodys[:], c.MinHold.Microseconds()}
}
