// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// releaseLater tries again after a failed attempt, until the server answers.
func (a *Authority) releaseLater(c *releaseCall, err error) {
	if a.life.Err() != nil {
		c.giveUp(unknownUnlessProved("release", err))
		return
	}
	time.AfterFunc(c.pause(), func() { a.releases.add(c) })
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

// releaseAlone waits for a row that somebody's transaction has locked, in a
// goroutine of its own: the lane's other keys do not wait with it.
func (a *Authority) releaseAlone(c *releaseCall) {
	a.running.Go(func() {
		for {
			freed, r, err := a.releaseWaiting(c)
			if err == nil {
				if freed {
					c.end(nil)
					return
				}
				if loss := lossOf(r, c.Key, c.Token); loss != nil {
					c.lost(loss)
					return
				}
			}
			if pause(a.life, c.pause()) != nil {
				c.giveUp(classify("release", ErrClosed))
				return
			}
		}
	})
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
