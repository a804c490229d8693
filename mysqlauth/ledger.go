// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// ledger knows what Close has to wait for: calls that have not returned, and
// debts, which are keys that background work still has to free, or that have to
// expire.
type ledger struct {
	mu      sync.Mutex
	closing bool
	calls   int
	owed    map[string]int // debts by key
	changed chan struct{}  // closed and replaced at every change while closing
}

func newLedger() *ledger {
	return &ledger{owed: make(map[string]int), changed: make(chan struct{})}
}

// enter begins a call; it is false once Close has begun.
func (l *ledger) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return false
	}
	l.calls++
	return true
}

// begin is enter for a call that run starts in a goroutine of its own: under
// the mutex, so that none is started when Close waits for goroutines.
func (l *ledger) begin(run func(func()), call func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return false
	}
	l.calls++
	run(func() {
		defer l.leave()
		call()
	})
	return true
}

func (l *ledger) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	l.announce()
}

// owe records a debt, which paid ends. Close does not refuse it: it comes from
// work that Close waits for.
func (l *ledger) owe(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed[key]++
}

// owes reports whether work behind callers still has to free the key.
func (l *ledger) owes(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owed[key] > 0
}

func (l *ledger) paid(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owed[key]--; l.owed[key] == 0 {
		delete(l.owed, key)
	}
	l.announce()
}

func (l *ledger) announce() {
	if l.closing {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// close refuses further calls; it is false if it was closed before.
func (l *ledger) close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.closing
	l.closing = true
	return first
}

// wait returns when done says so, or with the context's error.
func (l *ledger) wait(ctx context.Context, done func() bool) error {
	for {
		l.mu.Lock()
		ok, changed := done(), l.changed
		l.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *ledger) noCalls() bool { return l.calls == 0 }
func (l *ledger) noDebts() bool { return len(l.owed) == 0 }

// keys are those still owed.
func (l *ledger) keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.owed))
}
