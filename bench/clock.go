// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// instant is a reading of CLOCK_MONOTONIC in nanoseconds, which all processes of
// a machine share.
type instant int64

func (i instant) add(d time.Duration) instant     { return i + instant(d) }
func (i instant) sub(other instant) time.Duration { return time.Duration(i - other) }

// The runtime's clock is the same one from another beginning, and is read
// without a call of the system, which a tenure of two microseconds would feel.
var (
	processStart   = time.Now()
	processStarted = func() instant {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic("CLOCK_MONOTONIC: " + err.Error())
		}
		return instant(ts.Nano())
	}()
)

func now() instant { return processStarted.add(time.Since(processStart)) }

func sleepUntil(i instant) { time.Sleep(i.sub(now())) }
