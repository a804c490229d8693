// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"fmt"

	"github.com/tierlock/tierlock/tier/driver"
)

// Prove is Tenure for a write that is about to prove it: it fails once this
// handle's Release has begun, however the row looks by then. It sends nothing
// and does not look at the deadline, which is the server's to judge. Prove, Pin
// and ProveFreeing are for package idempotency.
func (l *Lease) Prove() (driver.Tenure, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	proved, err := l.prove()
	l.pins.unseen = l.pins.unseen || err == nil
	return proved, err
}

// prove is for callers who hold the mutex.
func (l *Lease) prove() (driver.Tenure, error) {
	if l.released.Load() || l.state == tenureEnding {
		return driver.Tenure{}, l.error("prove", fmt.Errorf("%w: its Release has begun", ErrLost))
	}
	return l.Tenure(), nil
}

// Pin is Prove for a transaction whose end the caller sees: Release does not
// give the key back before unpin was called, which is when COMMIT or ROLLBACK has
// returned, or was given up; known says which. unpin may be called more than once.
// After Prove, ProveFreeing and an end that is not known the key is given back by
// the server alone, which knows.
func (l *Lease) Pin() (_ driver.Tenure, unpin func(known bool), _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	proved, err := l.prove()
	if err != nil {
		return proved, nil, err
	}
	return proved, l.pins.add(l.tenure), nil
}

// ProveFreeing is Prove for a transaction that frees the row. Once it is
// committed the row is not ours: that then ends the tenure as released, and is
// no loss, neither for its context nor for Release. It is refused with [ErrOption]
// for a lease with a MinHold, which the row has to keep.
func (l *Lease) ProveFreeing() (driver.Tenure, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terms.minHold > 0 {
		return driver.Tenure{}, l.error("prove", optionError("a lease with min hold %v cannot be freed in a transaction", l.terms.minHold))
	}
	proved, err := l.prove()
	if err == nil {
		l.freeing = true
	}
	return proved, err
}

// pins are the guarded transactions under way of a tenure, under its mutex.
type pins struct {
	n      int
	unseen bool          // a guarded transaction's end is not known to this process
	idle   chan struct{} // closed when n falls to 0; nil when nobody waits
}

func (p *pins) add(t *tenure) (remove func(known bool)) {
	p.n++
	removed := false
	return func(known bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if removed {
			return
		}
		removed = true
		p.unseen = p.unseen || !known
		p.n--
		if p.n == 0 && p.idle != nil {
			close(p.idle)
			p.idle = nil
		}
	}
}

// unpinned waits until no guarded transaction is under way, and returns false
// when ctx ended first. None begins once the release has.
func (t *tenure) unpinned(ctx context.Context) bool {
	t.mu.Lock()
	if t.pins.n == 0 {
		t.mu.Unlock()
		return true
	}
	if t.pins.idle == nil {
		t.pins.idle = make(chan struct{})
	}
	idle := t.pins.idle
	t.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}
