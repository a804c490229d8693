// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// maxProbes is how many probes may be running, abandoned ones included. When
	// as many ignore their context, none is started until one returns: a probe
	// that never returns costs so many goroutines and no more.
	maxProbes = 4
	// probePause lies between the end of a probe that took all its time and the
	// start of the next.
	probePause = time.Millisecond
)

var (
	errProbeHung     = errors.New("breaker: probe has not answered in time")
	errProbeEnded    = errors.New("breaker: probe ended its goroutine")
	errProbesRunning = errors.New("breaker: no probe was started: earlier ones have not returned although their contexts have ended")
)

// watch runs while the tier is not closed: it has the tier asked, and gives it up
// when it was silent for too long.
func (h *Health) watch() {
	due := time.NewTimer(time.Until(h.status.Load().next))
	defer due.Stop()
	silence := time.NewTimer(time.Until(h.OpenSince().Add(h.settings.GlobalAfter)))
	defer silence.Stop()
	var p probing // one at a time
	for {
		select {
		case <-h.ctx.Done():
			p.end()
			return
		case <-silence.C:
			if left := h.silent(time.Now()); left > 0 {
				silence.Reset(left)
			}
			continue
		case <-due.C:
			p = h.ask()
			continue
		case err := <-p.answer:
			p.end()
			if h.asked(err) {
				return
			}
		case <-p.bound:
			p.end()
			h.asked(errProbeHung)
		}
		due.Reset(max(time.Until(h.status.Load().next), probePause))
		p = probing{}
	}
}

// silent gives the tier up when no success was reported for GlobalAfter, and
// otherwise returns how long that may yet take.
func (h *Health) silent(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.status.Load()
	from := s.since
	if h.served.After(from) {
		from = h.served
	}
	if left := h.settings.GlobalAfter - now.Sub(from); left > 0 {
		return left
	}
	h.move(lost, now, s.err)
	return 0
}

// probing is a probe under way. The zero value is none.
type probing struct {
	answer <-chan error // holds one value
	bound  <-chan time.Time
	cancel context.CancelFunc
}

func (p probing) end() {
	if p.cancel != nil {
		p.cancel()
	}
}

// ask starts a probe in a goroutine that may hang, panic or end without harm.
func (h *Health) ask() probing {
	h.mu.Lock()
	s := *h.status.Load()
	s.next = time.Now().Add(h.settings.ProbeEvery)
	h.status.Store(&s)
	h.mu.Unlock()

	answer := make(chan error, 1)
	select {
	case h.probes <- struct{}{}:
	default:
		answer <- errProbesRunning
		return probing{answer: answer}
	}
	ctx, cancel := context.WithTimeout(h.ctx, h.settings.ProbeTimeout)
	go func() {
		err := errProbeEnded
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("breaker: probe panicked: %v", v)
			}
			<-h.probes
			answer <- err
		}()
		err = h.probe(ctx)
	}()
	return probing{answer: answer, bound: time.After(h.settings.ProbeTimeout), cancel: cancel}
}

// asked takes the answer of a probe and reports whether it closed the tier. A
// context that ended is the caller's doing elsewhere, but a probe's caller waits
// for as long as it is allowed to: here it is no answer.
func (h *Health) asked(err error) bool {
	if classify(err) == success {
		err = nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count(err)
	if err == nil && h.partial.State() == gobreaker.StateClosed {
		h.move(answered, time.Now(), nil)
		return true
	}
	s := *h.status.Load()
	if err != nil {
		s.err = err
	}
	h.status.Store(&s)
	return false
}
