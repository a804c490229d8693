// SPDX-License-Identifier: Apache-2.0

package main

import (
	"iter"
	"maps"
	"slices"
)

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// quantile is one of latencies counted by microseconds, in milliseconds.
func quantile(counts map[int64]int64, q float64) float64 {
	var total int64
	for _, n := range counts {
		total += n
	}
	var seen int64
	for _, us := range slices.Sorted(maps.Keys(counts)) {
		if seen += counts[us]; float64(seen) >= q*float64(total) {
			return float64(us) / 1000
		}
	}
	return 0
}

// median takes every figure's own median.
func median(rounds []result) result {
	m := rounds[0]
	m.PerS = middle(rounds, func(r result) float64 { return r.PerS })
	m.P50 = middle(rounds, func(r result) float64 { return r.P50 })
	m.P99 = middle(rounds, func(r result) float64 { return r.P99 })
	m.Efficiency = middle(rounds, func(r result) float64 { return r.Efficiency })
	m.Extra = make(map[string]float64)
	for name := range rounds[0].Extra {
		m.Extra[name] = middle(rounds, func(r result) float64 { return r.Extra[name] })
	}
	m.Errors = 0
	for _, r := range rounds {
		m.Errors += r.Errors
	}
	return m
}

func middle(rounds []result, figure func(result) float64) float64 {
	all := make([]float64, len(rounds))
	for i, r := range rounds {
		all[i] = figure(r)
	}
	slices.Sort(all)
	return all[len(all)/2]
}
