// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"sync"
	"time"
)

const beat = 10 * time.Millisecond

// pulse knows when this process was kept from running. A promise of 100 ms is
// about the library: what a starved machine adds to it is measured here, and
// nothing else is forgiven.
type pulse struct {
	mu     sync.Mutex
	due    time.Time // of the beat that is awaited
	stalls []stall
}

// stall is a time in which a goroutine was ready to run and did not.
type stall struct{ from, until time.Time }

// startPulse returns a pulse that beats until ctx ends; stopped is closed then.
func startPulse(ctx context.Context) (p *pulse, stopped <-chan struct{}) {
	p = &pulse{due: time.Now().Add(beat)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			time.Sleep(beat)
			p.beat(time.Now())
		}
	}()
	return p, done
}

func (p *pulse) beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.due) > beat/2 { // less is what a timer costs
		p.stalls = append(p.stalls, stall{p.due, now})
	}
	p.due = now.Add(beat)
}

// since adds up the stalls from a moment until now.
func (p *pulse) since(from time.Time) (late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for i := len(p.stalls) - 1; i >= 0 && p.stalls[i].until.After(from); i-- {
		late += p.stalls[i].after(from)
	}
	if now.After(p.due) {
		late += stall{p.due, now}.after(from)
	}
	return late
}

func (s stall) after(from time.Time) time.Duration {
	if s.from.Before(from) {
		s.from = from
	}
	return max(0, s.until.Sub(s.from))
}
