// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// instant is a reading of CLOCK_MONOTONIC, which all processes of a machine
// share and which goes on while a process is stopped. Tenures of different
// nodes can be compared on no other clock.
type instant int64

// now panics only where the clock does not exist, and then nothing could be
// measured.
func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("CLOCK_MONOTONIC: " + err.Error())
	}
	return instant(ts.Nano())
}

func (i instant) add(d time.Duration) instant     { return i + instant(d) }
func (i instant) sub(other instant) time.Duration { return time.Duration(i - other) }

// instantOf puts a local time on the shared clock. A process stopped between
// the two readings would shift the result, so such a pair is read again.
func instantOf(t time.Time) instant {
	for {
		before := now()
		left := time.Until(t)
		if now().sub(before) < time.Millisecond {
			return before.add(left)
		}
	}
}
