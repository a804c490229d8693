// SPDX-License-Identifier: Apache-2.0

package main

import "sync"

// ledger is what a node has counted so far. It is safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	tally   tally
	tenures []tenure
}

// count changes the tally under the lock.
func (l *ledger) count(change func(*tally)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.tally)
}

// trouble keeps the first thing that nobody expected.
func (l *ledger) trouble(err error) {
	l.count(func(t *tally) {
		if t.Trouble == "" {
			t.Trouble = err.Error()
		}
	})
}

func (l *ledger) enter(t tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenures = append(l.tenures, t)
}

// report hands over the totals and the tenures that no report had yet.
func (l *ledger) report(kind string) report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := report{Kind: kind, Tally: l.tally, Tenures: l.tenures}
	l.tenures = nil
	return r
}
