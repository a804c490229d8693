// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"math/rand/v2"
	"time"
)

// clock is the last server time that a session has seen.
type clock struct {
	micros int64     // since 1970, as the server said
	sent   time.Time // when the request was sent that it answered
}

// at is not before the server's time at the local instant: the server
// answered after the request was sent, never before. A step of its clock since
// then is not in it.
func (c *clock) at(local time.Time) int64 { return c.micros + local.Sub(c.sent).Microseconds() }

// now is at for this instant.
func (c *clock) now() int64 { return c.at(time.Now()) }

// set takes the server time out of a reply to a request sent at the instant.
func (c *clock) set(micros int64, sent time.Time) { c.micros, c.sent = micros, sent }

// step is by how much the server's clock certainly jumped forward when a reply
// received at the local instant says micros: the two server times are at most
// as far apart as the send of the first is from the receipt of the second.
func (c *clock) step(micros int64, received time.Time) time.Duration {
	return time.Duration(micros-c.at(received)) * time.Microsecond
}

// retries bounds how often a statement is repeated that was rolled back.
const retries = 3

// jitter spreads those who met in a deadlock: 1 to 10 ms, then up to 20, 40.
func jitter(try int) time.Duration {
	return time.Millisecond + rand.N(10*time.Millisecond<<min(try, retries))
}

// pause sleeps, or returns the context's error when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
