// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	pollFloor = 50 * time.Millisecond
	pollSpan  = 200 * time.Millisecond
	pollCap   = time.Second
)

// poll is the capped, jittered back-off of somebody who waits without hearing
// anything. Its jitter is wide: waiters that began together must not ask
// together (faults.md H1, H2).
type poll struct {
	factor int
	cap    time.Duration
}

// newPoll caps the poll so that a mark of ours is extended in time.
func newPoll(ttl time.Duration) poll { return poll{factor: 1, cap: min(pollCap, ttl/3)} }

func (p *poll) next() time.Duration {
	d := (pollFloor + rand.N(pollSpan)) * time.Duration(p.factor)
	if d < p.cap {
		p.factor *= 2
		return d
	}
	return p.cap*3/4 + rand.N(p.cap/4)
}

func (p *poll) reset() { p.factor = 1 }

// busyRetry is when a row locked by somebody's transaction is looked at again.
func busyRetry() time.Duration { return 20*time.Millisecond + rand.N(30*time.Millisecond) }

// sleep waits for a message, the poll or the obstacle's own end, whichever is
// first. It returns false when ctx ended. A message says nothing about a fault.
func (a *attempt) sleep(ctx context.Context) bool {
	wake := a.wake
	if a.met.fault != nil {
		wake = nil
	}
	timer := time.NewTimer(least(a.poll.next(), least(a.met.left, a.met.look)))
	defer timer.Stop()
	select {
	case <-wake:
		a.look = false
		a.poll.reset()
		return true
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// least returns the shorter of two spans, of which 0 means none.
func least(a, b time.Duration) time.Duration {
	if b <= 0 {
		return a
	}
	if a <= 0 {
		return b
	}
	return min(a, b)
}
