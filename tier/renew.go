// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

const (
	// busyRenewal is when a renewal that met a locked row asks again.
	busyRenewal = 50 * time.Millisecond
	// renewalFloor keeps retries close to the deadline from becoming a storm.
	renewalFloor = 20 * time.Millisecond
)

// renewer renews all leases of a locker from one goroutine, those that are due
// together in one request.
type renewer struct {
	locker *Locker

	mu      sync.Mutex
	due     renewalHeap
	held    map[*holding]struct{} // granted, and neither released nor lost
	running bool
	stopped bool
	changed chan struct{} // wakes the goroutine; holds one value
	drained chan struct{} // closed when held falls to none; nil when nobody waits
}

func newRenewer(l *Locker) *renewer {
	return &renewer{locker: l, held: make(map[*holding]struct{}), changed: make(chan struct{}, 1)}
}

// third is when a lease is renewed next: a third of its TTL, give or take a
// tenth of that.
func (h *holding) third() time.Duration {
	d := h.ttl / 3
	return d*9/10 + rand.N(d/5)
}

// add takes a new lease, or returns false when the locker was closed.
func (r *renewer) add(h *holding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.held[h] = struct{}{}
	h.renewing.index = -1
	r.schedule(h, time.Now().Add(h.third()))
	if !r.running {
		r.running = true
		r.locker.behind.run(r.loop)
	}
	return true
}

// schedule plans the lease's next renewal. The caller holds the mutex.
func (r *renewer) schedule(h *holding, at time.Time) {
	if h.renewing.suspended || r.stopped {
		return
	}
	h.renewing.at = at
	if h.renewing.index >= 0 {
		heap.Fix(&r.due, h.renewing.index)
	} else {
		heap.Push(&r.due, h)
	}
	if h.renewing.index == 0 {
		r.poke()
	}
}

func (r *renewer) poke() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *renewer) plan(h *holding, in time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(h, time.Now().Add(in))
}

// suspend ends the renewals of what is called off or being released.
func (r *renewer) suspend(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unschedule(h)
}

func (r *renewer) unschedule(h *holding) {
	h.renewing.suspended = true
	if h.renewing.index >= 0 {
		heap.Remove(&r.due, h.renewing.index)
	}
}

// forget drops what is lost or whose release was answered.
func (r *renewer) forget(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unschedule(h)
	delete(r.held, h)
	if len(r.held) > 0 {
		return
	}
	if r.drained != nil {
		close(r.drained)
		r.drained = nil
	}
	r.poke() // nothing held: the goroutine ends
}

// loop runs while anything is held.
func (r *renewer) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next, more := r.collect(time.Now())
		if !more {
			return
		}
		for of, batch := range inBatches(due) {
			r.locker.behind.run(func() { r.locker.renewAll(of, batch) })
		}
		timer.Reset(next)
		select {
		case <-r.changed:
		case <-timer.C:
		}
	}
}

// renewalBatch is what leases must share to be renewed in one request.
type renewalBatch struct {
	by  grantor
	ttl time.Duration
}

// inBatches sorts leases by grantor and TTL, since one statement carries one.
// The renewer's mutex must be free: tenures take it under their own.
func inBatches(due []*holding) map[renewalBatch][]*holding {
	batches := make(map[renewalBatch][]*holding)
	for _, h := range due {
		by, _ := h.standing()
		of := renewalBatch{by, h.ttl}
		batches[of] = append(batches[of], h)
	}
	return batches
}

// early is by how much a lease may be renewed before its time: with others that
// are due, so that many leases cost the servers few statements.
func (h *holding) early(due int) time.Duration {
	if due == 0 {
		return 0
	}
	return h.ttl / 30
}

// collect takes what is due out of the heap. A lease is planned again when its
// answer is in.
func (r *renewer) collect(now time.Time) (due []*holding, next time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 || r.stopped {
		r.running = false
		return nil, 0, false
	}
	for len(r.due) > 0 && !r.due[0].renewing.at.After(now.Add(r.due[0].early(len(due)))) {
		due = append(due, heap.Pop(&r.due).(*holding))
	}
	next = time.Hour
	if len(r.due) > 0 {
		next = r.due[0].renewing.at.Sub(now)
	}
	return due, next, true
}

// renewAll renews leases of one batch: what stands behind them first, then the
// marks.
func (l *Locker) renewAll(of renewalBatch, holdings []*holding) {
	requests := make([]driver.Renewal, len(holdings))
	for i, h := range holdings {
		h.mu.Lock()
		requests[i] = driver.Renewal{Key: h.full, Token: h.token, TTL: of.ttl, Until: h.until}
		h.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), of.ttl/3)
	answers := of.by.Renew(ctx, requests)
	cancel()
	var marks []driver.KeyMark
	var marked []*holding
	for i, answer := range answers {
		h := holdings[i]
		_ = h.renewed(of.by, answer) // the lease's context tells the holder
		l.promoteSoon(h)
		l.renewer.plan(h, h.nextRenewal(answer.Err))
		if answer.Err != nil {
			continue
		}
		h.mu.Lock()
		if h.startRefresh() {
			marks = append(marks, driver.KeyMark{Key: h.full, Mark: h.mark})
			marked = append(marked, h)
		}
		h.mu.Unlock()
	}
	if len(marks) == 0 {
		return
	}
	ctx, cancel = context.WithTimeout(context.Background(), boundWithoutContext)
	defer cancel()
	// Absent, foreign or unreachable: a mark is never a sign of loss.
	_, _ = l.filter.Refresh(ctx, marks)
	for _, h := range marked {
		h.endRefresh()
	}
}

// renewed applies an answer, unless it stands on something else by now. It
// returns the tenure's error when that has ended.
func (h *holding) renewed(by grantor, answer driver.Renewed) error {
	h.mu.Lock()
	defer h.unlock()
	t := h.current
	t.locker.metrics.renewal(by != t.by || t.state != tenureHeld, answer.Err)
	if by != t.by {
		return nil
	}
	if loss, ok := errors.AsType[*driver.Loss](answer.Err); ok {
		t.notOurs(loss)
	}
	switch t.state {
	case tenureEnding:
		return nil // its release is at the server, before or after the renewal
	case tenureLost, tenureCalledOff:
		if answer.Err == nil && t.state == tenureLost {
			t.locker.releaseLate(t, answer.Until)
		}
		return t.cause
	case tenureHeld:
	}
	if answer.Err != nil {
		t.note(func() {
			t.locker.log.Debug("renewal not answered", zap.String("key", t.locker.shown(t.key)), zap.Error(answer.Err))
		})
		return nil
	}
	if answer.Until.After(t.until) {
		t.until = answer.Until
	}
	now := time.Now()
	t.readClock(now)
	if t.state == tenureLost {
		t.locker.releaseLate(t, answer.Until)
		return t.cause
	}
	h.arm(now)
	return t.cause
}

// releaseLate frees a row that a renewal extended although its tenure had
// ended: nobody will use it, so nobody shall wait for it longer than MinHold. The
// caller holds the tenure's mutex.
func (l *Locker) releaseLate(t *tenure, until time.Time) {
	l.releaseBehind(t.by, driver.Release{Key: t.full, Token: t.token, Until: until, MinHold: t.terms.minHold})
}

// nextRenewal is when to ask again after an answer.
func (h *holding) nextRenewal(err error) time.Duration {
	if err == nil {
		return h.third()
	}
	if busy(err) {
		return busyRenewal
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(renewalFloor, time.Until(h.deadline())/4)
}
