// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
)

// WithMetrics registers what the driver counts, under names that begin with
// "tierlock_". Nil means that nothing is counted. Default: nil.
//
// Authorities that share a registerer count together. Where that is not wanted,
// as with several databases, give each one of its own, of
// [prometheus.WrapRegistererWith]. The series stay when an authority is closed.
// Names that somebody else has registered already are an [ErrOption].
func WithMetrics(r prometheus.Registerer) Option {
	return option(func(o *options) { o.registerer = r })
}

// metrics are what the authorities of one registerer count together. They are one
// collector, so that all are registered or none. Every method does nothing on nil,
// which is what an authority without a registerer has.
type metrics struct {
	collectors []prometheus.Collector

	statements map[string]prometheus.Observer // by op
	batches    map[string]prometheus.Observer // by lane
	retries    map[uint16]prometheus.Counter  // by code, 0 for others
	undone     prometheus.Counter
	nothing    prometheus.Counter
	removed    prometheus.Counter
	swept      prometheus.Gauge
	steps      prometheus.Counter

	pool, rows *prometheus.Desc

	mu          sync.Mutex
	authorities []*Authority // those that are not closed
}

var (
	// lanes are the ops that go in batches; the other ops go alone.
	lanes  = []string{"claim", "look", "renew", "release"}
	others = []string{"settle", "sweep", "prepare", "check", "ping", "admin", "connect", "other"}
	// repeated are the codes of what is repeated; see [session.again].
	repeated = []uint16{1020, 1205, 1213, 3101, 3572, 0}
	// durations reach from a fast server to the longest limit by default.
	durations = []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2}
)

func newMetrics() *metrics {
	m := &metrics{
		statements: make(map[string]prometheus.Observer),
		batches:    make(map[string]prometheus.Observer),
		retries:    make(map[uint16]prometheus.Counter),
		pool:       prometheus.NewDesc("tierlock_authority_pool", "Connections in use and idle, and how many there may be.", []string{"state"}, nil),
		rows:       prometheus.NewDesc("tierlock_lease_rows", "Rows of the lease table that the last sweep of all of it left; none before this process has swept.", nil, nil),
	}
	statements := keep(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tierlock_authority_statement_seconds",
		Help: "Statements, whatever they carried and whether or not they were answered; connect is one that got no connection.", Buckets: durations,
	}, []string{"op"}))
	for _, op := range slices.Concat(lanes, others) {
		m.statements[op] = statements.WithLabelValues(op)
	}
	batches := keep(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tierlock_authority_batch_size", Help: "Calls that went to the server together.", Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	}, []string{"op"}))
	for _, op := range lanes {
		m.batches[op] = batches.WithLabelValues(op)
	}
	retries := keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_authority_retry_total", Help: "Statements that were repeated because the server had rolled them back for other transactions, by its error code.",
	}, []string{"code"}))
	for _, code := range repeated {
		name := strconv.Itoa(int(code))
		if code == 0 {
			name = "other"
		}
		m.retries[code] = retries.WithLabelValues(name)
	}
	settled := keep(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_settle_total", Help: "Claims of unknown outcome that came to an end: grants that were undone, and those that had granted nothing.",
	}, []string{"outcome"}))
	m.undone, m.nothing = settled.WithLabelValues("undone"), settled.WithLabelValues("nothing")
	m.removed = keep(m, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tierlock_sweep_rows_total", Help: "Unused rows that this process removed.",
	}))
	m.swept = keep(m, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tierlock_sweep_last_success_seconds", Help: "Unix time at which a sweep of this process last came to the end of the table, 0 before; of all processes one at a time sweeps.",
	}))
	m.steps = keep(m, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tierlock_clock_step_total", Help: "Forward steps of the server's clock, as far as they are proven.",
	}))
	return m
}

func keep[C prometheus.Collector](m *metrics, c C) C {
	m.collectors = append(m.collectors, c)
	return c
}

// register returns the metrics of a registerer: new ones, or those of the
// authorities before.
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
	to <- m.pool
	to <- m.rows
}

// Collect implements [prometheus.Collector]. It asks no server.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(to)
	}
	pool, rows, counted := m.sum()
	to <- prometheus.MustNewConstMetric(m.pool, prometheus.GaugeValue, float64(pool.InUse), "in_use")
	to <- prometheus.MustNewConstMetric(m.pool, prometheus.GaugeValue, float64(pool.Idle), "idle")
	to <- prometheus.MustNewConstMetric(m.pool, prometheus.GaugeValue, float64(pool.MaxOpenConnections), "max")
	if counted {
		to <- prometheus.MustNewConstMetric(m.rows, prometheus.GaugeValue, float64(rows))
	}
}

// sum adds up the pools, and the rows that sweepers have counted.
func (m *metrics) sum() (pool sql.DBStats, rows int64, counted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.authorities {
		stats := a.db.Stats()
		pool.InUse += stats.InUse
		pool.Idle += stats.Idle
		pool.MaxOpenConnections += stats.MaxOpenConnections
		if n := a.sweeper.counted.Load(); n >= 0 {
			rows, counted = rows+n, true
		}
	}
	return pool, rows, counted
}

// watch begins to look at an authority.
func (m *metrics) watch(a *Authority) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.authorities = append(m.authorities, a)
}

func (m *metrics) unwatch(a *Authority) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.authorities = slices.DeleteFunc(m.authorities, func(other *Authority) bool { return other == a })
}

// statement counts one that began at some time.
func (m *metrics) statement(op string, began time.Time) {
	if m == nil {
		return
	}
	seconds, known := m.statements[op]
	if !known {
		seconds = m.statements["other"]
	}
	seconds.Observe(time.Since(began).Seconds())
}

// batch counts calls of a lane.
func (m *metrics) batch(op string, calls int) {
	if m != nil {
		m.batches[op].Observe(float64(calls))
	}
}

// retry counts a statement that is about to be repeated after an error.
func (m *metrics) retry(err error) {
	if m == nil {
		return
	}
	code := uint16(0)
	if server, ok := errors.AsType[*mysql.MySQLError](err); ok {
		code = server.Number
	}
	c, known := m.retries[code]
	if !known {
		c = m.retries[0]
	}
	c.Inc()
}

// count counts rows that were freed, and entries that are over. A statement that
// freed fewer rows than it asked for does not say which; their entries end later,
// when nothing is found for them.
func (t *settler) count(freed, over int) {
	if t.metrics == nil {
		return
	}
	t.metrics.undone.Add(float64(freed))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.freed += freed
	undone := min(t.freed, over)
	t.freed -= undone
	t.metrics.nothing.Add(float64(over - undone))
}

// step counts one of the server's clock.
func (m *metrics) step() {
	if m != nil {
		m.steps.Inc()
	}
}

// window counts the rows that a sweep removed from one.
func (m *metrics) window(removed int) {
	if m != nil {
		m.removed.Add(float64(removed))
	}
}

// sweep notes that one has come to the end of the table.
func (m *metrics) sweep() {
	if m != nil {
		m.swept.SetToCurrentTime()
	}
}
