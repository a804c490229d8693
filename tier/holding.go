// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// holding is what this process holds of a key: what a grantor gave it, and renews.
// It passes through one tenure, or through several that are handed it one after
// another. All that changes is under its mutex, its tenures' states too.
type holding struct {
	locker *Locker
	key    string
	full   string
	policy *policy
	ttl    time.Duration
	holder string
	level  Level
	mark   driver.Mark
	// What a guarded write proves: the token and the table of the grant.
	proof driver.Token
	table string

	mu sync.Mutex
	// current is the tenure whose turn it is, also when that is over.
	current *tenure
	// by stands behind it, under token. Promotion changes both, once.
	by        grantor
	token     driver.Token
	promotion *promotion // nil before the first

	until    time.Time // local time before which it does not expire
	block    block
	timer    *time.Timer
	armed    time.Time // when the timer fires
	marks    markWriter
	notes    []func() // what to log once the mutex is free
	renewing renewalPlan
}

// unlock frees the mutex and then, behind the caller, says what was noted under
// it: a log sink may block, or ask the lease, and the caller may be the one who
// brings other leases' renewals.
func (h *holding) unlock() {
	notes := h.notes
	h.notes = nil
	h.mu.Unlock()
	if len(notes) == 0 {
		return
	}
	h.locker.behind.run(func() {
		for _, say := range notes {
			say()
		}
	})
}

func (h *holding) note(say func()) { h.notes = append(h.notes, say) }

// margin is that of the terms it was granted on.
func (h *holding) margin() time.Duration { return margin(h.ttl) }

func (h *holding) deadline() time.Time { return h.until.Add(-h.margin()) }

// standing returns what stands behind it now, and under which token.
func (h *holding) standing() (grantor, driver.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by, h.token
}

// tick is the timer.
func (h *holding) tick() {
	h.mu.Lock()
	defer h.unlock()
	now := time.Now()
	t := h.current
	t.readClock(now)
	if t.state == tenureHeld || t.state == tenureCalledOff {
		h.arm(now)
	}
}

// arm sets the timer. The caller holds the mutex.
func (h *holding) arm(now time.Time) {
	next := h.current.untilNext(now)
	h.armed = now.Add(next)
	h.timer.Reset(next)
}

// heldBy is the key under which a context carries tenures of a locker, for
// re-entry: the innermost first.
type heldBy struct{ locker *Locker }

type carried struct {
	tenure *tenure
	outer  *carried
}

// carriedBy returns ctx with the tenure in it, for re-entry.
func (t *tenure) carriedBy(ctx context.Context) context.Context {
	outer, _ := ctx.Value(heldBy{t.locker}).(*carried)
	return context.WithValue(ctx, heldBy{t.locker}, &carried{t, outer})
}
