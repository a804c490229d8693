// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tierlock/tierlock/idempotency"
)

func TestMetrics_everyOutcome(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		registry := prometheus.NewRegistry()
		g := s.guard(t, idempotency.WithMetrics(registry))
		second := s.newGuard(t, s.db, idempotency.WithMetrics(registry)) // they count together
		lease := s.acquire(t, s.locker)
		once := func(g *idempotency.Guard, r idempotency.Request, write idempotency.Write) {
			_, _ = g.Once(t.Context(), lease, r, write)
		}
		failing := func(err error) idempotency.Write {
			return func(context.Context, *sql.Tx) ([]byte, error) { return nil, err }
		}
		once(g, buy("one"), sale)
		once(second, buy("one"), sale)
		other := buy("one")
		other.Fingerprint = payload("two")
		once(g, other, sale)
		once(g, buy("two"), failing(idempotency.Final(nil, nil)))
		once(g, buy("three"), failing(errors.New("no")))
		once(g, buy(""), sale)
		_, _ = g.Reserve(t.Context(), nil, buy("four"), idempotency.Step{Name: "a", Call: func(context.Context, idempotency.Call) ([]byte, error) {
			r := buy("four")
			r.Wait = -1
			once(g, r, sale)
			return nil, nil
		}})
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		once(g, buy("five"), sale)

		want := map[string]float64{
			"first": 2, "replayed": 1, "mismatch": 1, "final": 1, "failed": 1, "invalid": 1, "in_progress": 1, "stale_fence": 1, "superseded": 0,
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, f := range families {
			for _, m := range f.GetMetric() {
				switch f.GetName() {
				case "tierlock_idempotency_total":
					seen++
					if name := m.GetLabel()[0].GetValue(); m.GetCounter().GetValue() != want[name] {
						t.Errorf("%s: %v, want %v", name, m.GetCounter().GetValue(), want[name])
					}
				case "tierlock_fence_rejected_total":
					if n := m.GetCounter().GetValue(); n != 1 {
						t.Errorf("%v fences rejected", n)
					}
				}
			}
		}
		if seen != len(want) {
			t.Errorf("%d outcomes, want %d", seen, len(want))
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Error(problems, err)
		}
	})
}
