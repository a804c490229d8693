// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// gathered is counters, gauges and how often histograms were told, by name and
// label.
func gathered(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

func TestMetrics(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		metrics := prometheus.NewPedanticRegistry()
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit), WithMetrics(metrics))
		is := func(want map[string]float64) {
			t.Helper()
			found := gathered(t, metrics)
			for name, n := range want {
				if found["tierlock_"+name] != n {
					t.Errorf("%s is %v, want %v", name, found["tierlock_"+name], n)
				}
			}
		}
		if _, known := gathered(t, metrics)["tierlock_lease_rows"]; known {
			t.Error("rows are told before anybody has counted them")
		}

		var keys []string
		for i := range 300 {
			keys = append(keys, fmt.Sprintf("ns/k%03d", i))
		}
		if err := a.Prepare(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		var left atomic.Int64
		left.Store(2)
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("SET l.fence = ") && left.Add(-1) >= 0 {
				return stack.SQLError(1213, "try restarting transaction")
			}
			return stack.Pass
		})
		g := mustClaim(t, a, claimOf("ns/k000"))
		p.OnRequest(nil)
		if got := renewOne(t, a, "ns/k000", g, 10*time.Second); got.Err != nil {
			t.Error(got.Err)
		}
		mustRelease(t, a, "ns/k000", g)
		is(map[string]float64{
			"authority_retry_total 1213": 2, "authority_retry_total other": 0,
			"authority_batch_size claim": 1, "authority_batch_size renew": 1, "authority_batch_size release": 1, "authority_batch_size look": 0,
			"authority_statement_seconds claim": 3, // the tries
			"authority_statement_seconds renew": 1, "authority_statement_seconds release": 1, "authority_statement_seconds look": 0,
			"authority_pool max": 8,
		})

		// A grant whose reply is lost, and a claim that never arrives.
		hit := p.LoseReply(1, stack.Having("SET l.fence = "), stack.HangUp)
		if _, err := a.Claim(t.Context(), claimOf("ns/k001")); driver.ClassOf(err) != driver.ClassUnknown {
			t.Fatal(err)
		}
		<-hit
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("SET l.fence = ") {
				return stack.HangUp
			}
			return stack.Pass
		})
		if _, err := a.Claim(t.Context(), claimOf("ns/k002")); driver.ClassOf(err) != driver.ClassUnknown {
			t.Fatal(err)
		}
		p.OnRequest(nil)
		within(t, 30*time.Second, "both are settled", func() bool {
			found := gathered(t, metrics)
			return found["tierlock_settle_total undone"] == 1 && found["tierlock_settle_total nothing"] == 1
		})

		mustExec(t, admin, age+" AND lock_key >= 'ns/k100'")
		if n := mustSweep(t, a); n != 200 {
			t.Errorf("%d rows were swept, want 200", n)
		}
		is(map[string]float64{"sweep_rows_total": 200, "lease_rows": 101}) // and the sweeper's own
		if at := gathered(t, metrics)["tierlock_sweep_last_success_seconds"]; time.Since(time.Unix(int64(at), 0)) > time.Minute {
			t.Errorf("the last sweep was at %v", at)
		}
		mustSweep(t, a)
		is(map[string]float64{"sweep_rows_total": 200, "lease_rows": 101, "clock_step_total": 0})

		sent := time.Now()
		a.watchClock(clock{micros: 1e15, sent: sent}, clock{micros: 1e15 + 1e7}, sent, time.Second)
		is(map[string]float64{"clock_step_total": 1})

		second := open(t, d.DSN(), WithMetrics(metrics))
		is(map[string]float64{"authority_pool max": 16})
		if err := second.Close(t.Context()); err != nil {
			t.Error(err)
		}
		is(map[string]float64{"authority_pool max": 8})
		if problems, err := testutil.GatherAndLint(metrics); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
	})
}

func TestMetrics_nameOfAnother(t *testing.T) {
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "tierlock_lease_rows", Help: "Somebody else's."}))
	a, err := Open("user:secret@tcp(127.0.0.1:1)/db", WithMetrics(metrics))
	if !errors.Is(err, ErrOption) || a != nil {
		t.Fatalf("Open: %v, %v; want nil, ErrOption", a, err)
	}
}
