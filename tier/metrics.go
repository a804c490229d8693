// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
)

// WithMetrics registers what the locker counts, under names that begin with
// "tierlock_". Labels are policies, "default" for keys that none matches, and
// never keys. Nil means that nothing is counted, at no cost. Default: nil.
//
// Lockers that share a registerer count together. Where that is not wanted, give
// each one of its own, of [prometheus.WrapRegistererWith]. The series stay when a
// policy is dropped or the locker is closed. Names that somebody else has
// registered already are an [ErrOption].
func WithMetrics(r prometheus.Registerer) Option {
	return lockerOption(func(s *settings) { s.registerer = r })
}

// metrics are what the lockers of one registerer count together. They are one
// collector, so that all are registered or none. Every method does nothing on
// nil, which is what a locker without a registerer has.
type metrics struct {
	collectors []prometheus.Collector

	// By policy; each policy keeps its own at hand.
	acquires            *prometheus.CounterVec
	acquire, wait, hold *prometheus.HistogramVec
	waits               *prometheus.CounterVec
	held, waiters       *prometheus.GaugeVec

	degraded map[fallback.Rung]prometheus.Counter
	lost     [len(lossCauses)]prometheus.Counter
	renewals [len(renewOutcomes)]prometheus.Counter
	releases [len(releaseOutcomes)]prometheus.Counter

	handoffs prometheus.Counter

	breakers *prometheus.Desc

	mu      sync.Mutex
	lockers []*Locker // those whose breakers are looked at
}

// moments reach from a round trip to the end of a long wait.
var moments = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}

// turns go on to the longest hold that is allowed by default.
var turns = append(slices.Clone(moments), 30, 60, 300)

func newMetrics() *metrics {
	m := &metrics{}
	m.acquires = keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_acquire_total",
		Help: "Answers to callers: one for every lease handed out, re-entered ones included, and one for every error.",
	}, []string{"policy", "level", "outcome"}))
	m.acquire = keep(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tierlock_acquire_seconds", Help: "How long a caller that was handed a lease had to wait for it, re-entry apart.", Buckets: moments,
	}, []string{"policy"}))
	m.wait = keep(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tierlock_wait_seconds", Help: "From a wait's beginning to its end, whatever came of it.", Buckets: moments,
	}, []string{"policy"}))
	m.hold = keep(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tierlock_hold_seconds", Help: "From a tenure's grant to the beginning of its release, or its loss.", Buckets: turns,
	}, []string{"policy"}))
	m.waits = keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_waits_total", Help: "Waits for a key: for its holder, in its line, or for a tier to be asked again; by segment of the keys' hash.",
	}, []string{"policy", "segment"}))
	m.held = keep(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tierlock_held", Help: "Tenures that are neither lost nor being released.",
	}, []string{"policy"}))
	m.waiters = keep(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tierlock_waiters", Help: "Waits under way.",
	}, []string{"policy"}))

	degraded := keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_degraded_total",
		Help: "Answers by the ladder: leases granted when the authority was asked again (retry) or by this process alone (local), and refusals without a tier to grant (fail_closed).",
	}, []string{"rung"}))
	m.degraded = make(map[fallback.Rung]prometheus.Counter)
	for _, rung := range []fallback.Rung{fallback.Retry, fallback.Local, fallback.FailClosed} {
		m.degraded[rung] = degraded.WithLabelValues(rung.String())
	}
	lost := keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_lost_total", Help: "Tenures that ended before their release, or that the release found gone.",
	}, []string{"cause"}))
	for i, cause := range lossCauses {
		m.lost[i] = lost.WithLabelValues(cause)
	}
	renewals := keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_renew_total", Help: "Answers to renewals, one for each lease that was asked for; late means that it had ended by then.",
	}, []string{"outcome"}))
	for i, outcome := range renewOutcomes {
		m.renewals[i] = renewals.WithLabelValues(outcome)
	}
	releases := keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_release_total", Help: "Releases of tenures by their last handle; unknown means that the release went on behind.",
	}, []string{"outcome"}))
	for i, outcome := range releaseOutcomes {
		m.releases[i] = releases.WithLabelValues(outcome)
	}
	m.handoffs = keep(m, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tierlock_handoff_total", Help: "Releases that passed what was held to the next caller of this process, without a server.",
	}))
	m.breakers = prometheus.NewDesc("tierlock_breaker_state",
		"1 while the window is open, times the lockers of this process; what is open globally is open partially.",
		[]string{"tier", "window"}, nil)
	return m
}

func keep[C prometheus.Collector](m *metrics, c C) C {
	m.collectors = append(m.collectors, c)
	return c
}

// register returns the metrics of a registerer: new ones, or those of the lockers
// before.
func register(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	m := newMetrics()
	err := r.Register(m)
	if again, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if shared, ours := again.ExistingCollector.(*metrics); ours {
			return shared, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: metrics: %w", ErrOption, err)
	}
	return m, nil
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(to)
	}
	to <- m.breakers
}

// Collect implements [prometheus.Collector]. It asks no server.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(to)
	}
	for tier, open := range m.open() {
		to <- prometheus.MustNewConstMetric(m.breakers, prometheus.GaugeValue, open.partial, tier, "partial")
		to <- prometheus.MustNewConstMetric(m.breakers, prometheus.GaugeValue, open.global, tier, "global")
	}
}

// windows counts open ones.
type windows struct{ partial, global float64 }

// open looks at the breakers themselves: what listeners are told comes later.
func (m *metrics) open() map[string]windows {
	m.mu.Lock()
	defer m.mu.Unlock()
	sums := make(map[string]windows)
	look := func(tier string, h *breaker.Health) {
		if h == nil {
			return
		}
		sum := sums[tier]
		switch h.State() {
		case breaker.Global:
			sum.partial++
			sum.global++
		case breaker.Partial:
			sum.partial++
		case breaker.Closed:
		}
		sums[tier] = sum
	}
	for _, l := range m.lockers {
		look("mysql", l.authorityHealth)
		look("redis", l.filterHealth)
	}
	return sums
}

// watch begins to look at a locker's breakers.
func (m *metrics) watch(l *Locker) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lockers = append(m.lockers, l)
}

// unwatch may be called more than once.
func (m *metrics) unwatch(l *Locker) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lockers = slices.DeleteFunc(m.lockers, func(other *Locker) bool { return other == l })
}

// clock is the time where it is of any use, so that nobody else pays for it.
func (m *metrics) clock() time.Time {
	if m == nil {
		return time.Time{}
	}
	return time.Now()
}
