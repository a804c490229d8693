// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tierlock/tierlock/tier/driver"
)

// Health is what is known about one tier. All methods may be called at any time
// and from anywhere, listeners and the probe included.
type Health struct {
	tier     string
	settings Settings
	probe    func(context.Context) error

	// status is replaced as a whole, so that readers need no lock.
	status atomic.Pointer[status]
	// calm says that the tier is closed and no failure is remembered, so that
	// another success changes nothing.
	calm atomic.Bool

	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	watching sync.WaitGroup
	probes   chan struct{} // a place for each probe that has not returned

	mu sync.Mutex // never held while code of others runs, gobreaker apart
	// partial is the window of consecutive failures. It has no callbacks: they
	// would run under its mutex, and asking it anything there deadlocks. It is
	// only used under mu.
	partial *gobreaker.TwoStepCircuitBreaker[struct{}]
	global  window
	// served is the latest success reported while the tier was not closed.
	served    time.Time
	listeners []*listener
	closed    bool
}

// status is what readers of a Health see.
type status struct {
	state State
	since time.Time // when it opened; zero when closed
	next  time.Time // when the next probe starts
	err   error     // of the latest outage: the failure that opened it, or the latest probe's
}

// New returns the health of a tier that is taken to serve. The probe asks the
// tier whether it does, in a goroutine of its own and only while the tier is not
// closed; what it returns is an answer when it is nil or contention. Its context
// ends at [Settings.ProbeTimeout] and at Close. A probe that does not return then
// is abandoned, and its late answer is not used.
func New(tier string, s Settings, probe func(context.Context) error) (*Health, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if probe == nil {
		return nil, errors.New("breaker: no probe: the tier " + tier + " could never close again")
	}
	h := &Health{
		tier:     tier,
		settings: s.withDefaults(),
		probe:    probe,
		probes:   make(chan struct{}, maxProbes),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.partial = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		// The cadence is that of watch. gobreaker's own clock starts a moment later
		// and would now and then refuse the probe that is due.
		Timeout: time.Nanosecond,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= h.settings.Consecutive
		},
	})
	h.status.Store(&status{})
	h.calm.Store(true)
	return h, nil
}

// Report tells what became of one executed statement, whatever it carried. It
// never waits for anything but other reports, and costs one atomic load while
// all is well.
func (h *Health) Report(err error) {
	switch classify(err) {
	case excluded:
	case success:
		if !h.calm.Load() {
			h.succeeded()
		}
	case failure:
		h.failed(err)
	}
}

// outcome is what a call says about its tier.
type outcome uint8

const (
	success outcome = iota
	failure
	excluded
)

// classify is done here once and for both windows, so gobreaker, which takes a
// caller that gave up for a failure unless told otherwise, never sees one.
func classify(err error) outcome {
	if err == nil {
		return success
	}
	switch driver.ClassOf(err) {
	case driver.ClassContention:
		return success
	case driver.ClassCaller:
		return excluded
	case driver.ClassUnknown, driver.ClassTransient, driver.ClassDown, driver.ClassConfig:
	}
	return failure
}

// succeeded counts for both windows. While the tier is not closed it only says
// that the tier is not silent; what closes it is a probe.
func (h *Health) succeeded() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	now := time.Now()
	h.global.success(now)
	if h.State() != Closed {
		h.served = now
		return
	}
	h.count(nil)
	h.calm.Store(h.global.empty())
}

func (h *Health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.calm.Store(false)
	now := time.Now()
	isLost := h.global.failure(now, &h.settings)
	if h.State() == Closed {
		h.count(err)
		if h.partial.State() != gobreaker.StateClosed {
			h.move(tripped, now, err)
		}
	}
	if isLost {
		h.move(lost, now, err)
	}
}

// count gives a call to the window of consecutive failures; under h.mu. What
// gobreaker hands out is given back at once, for a probe too: nothing that hangs
// can keep it half-open.
func (h *Health) count(err error) {
	if done, refused := h.partial.Allow(); refused == nil {
		done(err)
	}
}

// move applies an event; under h.mu.
func (h *Health) move(e event, now time.Time, cause error) {
	was := h.status.Load()
	to := moves[was.state][e]
	if to == was.state {
		return
	}
	switch {
	case to == Closed:
		h.status.Store(&status{err: was.err})
		h.global = window{}
		h.served = time.Time{}
	case was.state == Closed:
		h.status.Store(&status{state: to, since: now, next: now.Add(h.settings.ProbeEvery), err: cause})
		h.watching.Go(h.watch)
	default:
		h.status.Store(&status{state: to, since: was.since, next: was.next, err: cause})
	}
	h.publish(Change{Tier: h.tier, From: was.state, To: to, At: now, Cause: cause})
}

// State is one atomic load.
func (h *Health) State() State { return h.status.Load().state }

// OpenSince returns when the outage began, and the zero time when the tier is
// closed.
func (h *Health) OpenSince() time.Time { return h.status.Load().since }

// Err returns the failure that opened the tier or, once there was one, the
// latest probe's; nil when it is closed.
func (h *Health) Err() error {
	s := h.status.Load()
	if s.state == Closed {
		return nil
	}
	return s.err
}

// LastErr is Err that stays when the tier has come back, for who was refused and
// asks why only then.
func (h *Health) LastErr() error { return h.status.Load().err }

// RetryAfter returns how long it is until the next probe, which is the soonest
// that asking again can have another answer. It is 0 when the tier is closed and
// only then.
func (h *Health) RetryAfter() time.Duration {
	s := h.status.Load()
	if s.state == Closed {
		return 0
	}
	return max(time.Until(s.next), probePause)
}

// Close ends what Health runs and makes Report do nothing. State stays as it is,
// and listeners are told no more. It waits for neither a probe nor a listener
// that is under way, and may be called more than once.
func (h *Health) Close() {
	h.mu.Lock()
	h.closed = true
	for _, l := range h.listeners {
		l.queue = nil
	}
	h.listeners = nil
	h.mu.Unlock()
	h.cancel()
	h.watching.Wait()
}
