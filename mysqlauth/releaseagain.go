// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

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
