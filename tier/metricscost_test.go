// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// allocated is how many allocations a call of each costs, in fractions, so that those
// of goroutines behind it do not turn one into two. The rounds take turns, and the
// least counts, because whatever else allocates in the process only adds.
func allocated(fs ...func()) []float64 {
	const rounds, calls = 15, 300
	var before, after runtime.MemStats
	least := make([]float64, len(fs))
	for round := range rounds {
		for i, f := range fs {
			f()
			runtime.ReadMemStats(&before)
			for range calls {
				f()
			}
			runtime.ReadMemStats(&after)
			if n := float64(after.Mallocs-before.Mallocs) / calls; round == 0 || n < least[i] {
				least[i] = n
			}
		}
	}
	return least
}

func TestMetrics_allocateNothing(t *testing.T) {
	for name, cycle := range map[string]func(l *tier.Locker, f *tiertest.Filter){
		"granted": func(l *tier.Locker, f *tiertest.Filter) {
			lease, err := l.Acquire(t.Context(), "stop/1")
			if err != nil {
				t.Fatal(err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			for f.Marks() > 1 { // a mark that is still being cleared makes the next call wait, or not
				runtime.Gosched()
			}
		},
		"refused": func(l *tier.Locker, _ *tiertest.Filter) {
			if _, err := l.TryAcquire(t.Context(), "stop/held"); !errors.Is(err, tier.ErrHeld) {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var cycles []func()
			for _, option := range []tier.Option{tier.WithMetrics(nil), tier.WithMetrics(prometheus.NewRegistry())} {
				f := tiertest.NewFilter()
				l, err := tier.New(f, tiertest.NewAuthority(), rungs(), option)
				if err != nil {
					t.Fatal(err)
				}
				lease, err := l.Acquire(t.Context(), "stop/held")
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := errors.Join(lease.Release(context.Background()), l.Close(context.Background())); err != nil {
						t.Error(err)
					}
				}()
				cycles = append(cycles, func() { cycle(l, f) })
			}
			cost := allocated(cycles...)
			if cost[1] > cost[0]+0.75 {
				t.Errorf("%.2f allocations with metrics, %.2f without", cost[1], cost[0])
			}
		})
	}
}

func BenchmarkAcquire_metrics(b *testing.B) {
	for name, metrics := range map[string]prometheus.Registerer{"without": nil, "with": prometheus.NewRegistry()} {
		b.Run(name, func(b *testing.B) {
			l, err := tier.New(tiertest.NewFilter(), tiertest.NewAuthority(), rungs(), tier.WithMetrics(metrics))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close(context.Background()) }()
			b.ReportAllocs()
			for b.Loop() {
				lease, err := l.Acquire(b.Context(), "stop/1")
				if err != nil {
					b.Fatal(err)
				}
				if err := lease.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
