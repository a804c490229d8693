// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// selfStop stops the process from inside a critical section. A stop from
// outside misses it too often: only the worker knows that it has read and not
// yet written.
type selfStop struct {
	armed atomic.Bool
	ttl   time.Duration
	say   func(kind string) error
}

// arm makes the next worker that passes stop the process.
func (s *selfStop) arm() { s.armed.Store(true) }

// pass is called between the read and the write. It reports whether this worker
// stopped the process, and returns only when the clock has shown the gap: the
// other threads run on for a moment after the signal was sent, this one too.
// A run that ends before there was a gap was broken off.
func (s *selfStop) pass(runEnds <-chan struct{}) (bool, error) {
	if !s.armed.CompareAndSwap(true, false) {
		return false, nil
	}
	if err := s.say(saysPausing); err != nil {
		return false, err
	}
	last := now()
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return false, fmt.Errorf("stop the process: %w", err)
	}
	for limit := last.add(20 * s.ttl); ; {
		time.Sleep(time.Millisecond)
		read := now()
		if read.sub(last) >= 2*s.ttl {
			return true, s.say(saysResumed)
		}
		last = read
		select {
		case <-runEnds:
			return false, nil
		default:
			if read > limit {
				return false, errors.New("the process was not stopped for two TTLs")
			}
		}
	}
}
