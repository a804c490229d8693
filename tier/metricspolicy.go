// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierlock/tierlock/fallback"
)

// segments is how many parts of the key space waits are counted by.
const segments = 16

// outcome is what a caller was told.
type outcome uint8

const (
	outcomeGranted outcome = iota
	outcomeHeld
	outcomeUnavailable
	outcomeCancelled
	outcomeClosed
	outcomeError // a key, an option, or a lease lost while the next was waited for
)

var outcomes = [...]string{
	outcomeGranted: "granted", outcomeHeld: "held", outcomeUnavailable: "unavailable",
	outcomeCancelled: "cancelled", outcomeClosed: "closed", outcomeError: "error",
}

// outcomeOf: what ended because the caller's context did was cancelled, whatever
// was in the way until then.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return outcomeGranted
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcomeCancelled
	case errors.Is(err, ErrHeld):
		return outcomeHeld
	case errors.Is(err, ErrUnavailable):
		return outcomeUnavailable
	case errors.Is(err, ErrClosed):
		return outcomeClosed
	}
	return outcomeError
}

// policyMetrics are the series of one policy, found once, when it is compiled:
// counting looks nothing up and allocates nothing. Nil counts nothing.
type policyMetrics struct {
	granted             [len(levels)]prometheus.Counter
	refused             [len(outcomes)]prometheus.Counter // but for granted
	acquire, wait, hold prometheus.Observer
	waits               [segments]prometheus.Counter
	held, waiters       prometheus.Gauge
}

// levels are those that leases are granted at.
var levels = [...]Level{LevelFull, LevelAuthority, LevelFilter, LevelLocal}

// of returns the series of a policy.
func (m *metrics) of(policy string) *policyMetrics {
	if m == nil {
		return nil
	}
	policy = strings.ToValidUTF8(policy, "\uFFFD") // a pattern may be any bytes
	p := &policyMetrics{
		acquire: m.acquire.WithLabelValues(policy),
		wait:    m.wait.WithLabelValues(policy),
		hold:    m.hold.WithLabelValues(policy),
		held:    m.held.WithLabelValues(policy),
		waiters: m.waiters.WithLabelValues(policy),
	}
	for _, level := range levels {
		p.granted[level-LevelFull] = m.acquires.WithLabelValues(policy, level.String(), outcomes[outcomeGranted])
	}
	for o := outcomeHeld; int(o) < len(outcomes); o++ {
		p.refused[o] = m.acquires.WithLabelValues(policy, LevelNone.String(), outcomes[o])
	}
	for i := range p.waits {
		p.waits[i] = m.waits.WithLabelValues(policy, fmt.Sprintf("%02d", i))
	}
	return p
}

// segmentOf is the segment of a key, the same in every process: FNV-1a.
func segmentOf(key string) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % segments)
}

// told counts what a call that began at some time told its caller: one lease, or
// an error.
func (l *Locker) told(began time.Time, lease *Lease, err error) {
	m := l.metrics
	if m == nil {
		return
	}
	if err != nil {
		o := outcomeOf(err)
		l.policyOf(err).seen.refused[o].Inc()
		if o == outcomeUnavailable {
			m.degraded[fallback.FailClosed].Inc()
		}
		return
	}
	seen := lease.policy.seen
	seen.granted[lease.level-LevelFull].Inc()
	if lease.reentered {
		return
	}
	seen.acquire.Observe(time.Since(began).Seconds())
	if lease.rung != fallback.None {
		m.degraded[lease.rung].Inc()
	}
}

// policyOf is the policy of the key that an error names.
func (l *Locker) policyOf(err error) *policy {
	set := l.policies.Load()
	said, ok := errors.AsType[*Error](err)
	if !ok || said.Key == "" || len(said.Key) > maxKey {
		return set.rest
	}
	return set.find(said.Key)
}

// waits counts the beginning of a wait, once in an acquire.
func (a *attempt) waits() {
	if a.locker.metrics == nil || a.waiting != nil {
		return
	}
	a.waiting, a.waitsSince = a.policy.seen, time.Now()
	a.waiting.waits[segmentOf(a.key)].Inc()
	a.waiting.waiters.Inc()
}

// waited counts its end, if there was one.
func (a *attempt) waited() {
	if a.waiting == nil {
		return
	}
	a.waiting.waiters.Dec()
	a.waiting.wait.Observe(time.Since(a.waitsSince).Seconds())
}

// rung is where the ladder stood when the attempt was granted its lease.
func (a *attempt) rung(level Level) fallback.Rung {
	switch {
	case level == LevelLocal:
		return fallback.Local
	case a.retried:
		return fallback.Retry
	}
	return fallback.None
}

// waitsFor counts a wait for any of several keys, for each of them, and returns
// what counts its end.
func (l *Locker) waitsFor(keys []string) (over func()) {
	if l.metrics == nil {
		return func() {}
	}
	policies, began := l.policies.Load(), time.Now()
	var seen []*policyMetrics
	for _, key := range keys {
		p := policies.find(key).seen
		p.waits[segmentOf(key)].Inc()
		p.waiters.Inc()
		seen = append(seen, p)
	}
	return func() {
		for _, p := range seen {
			p.waiters.Dec()
			p.wait.Observe(time.Since(began).Seconds())
		}
	}
}
