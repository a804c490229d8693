// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// goal is a figure the library wants to be known for.
type goal struct {
	ratio string
	least float64 // it is at least this; 0: it has an upper bound
	most  float64
	what  string
	of    func(results) float64
}

type results []result

func (r results) find(title, lock string, workers int) (result, bool) {
	for _, one := range r {
		if one.Case == title && one.Lock == lock && one.Workers == workers {
			return one, true
		}
	}
	return result{}, false
}

// against divides the throughputs of two entrants; NaN when one did not run.
func against(title string, workers int, a, b string) func(results) float64 {
	return func(r results) float64 {
		x, ok1 := r.find(title, a, workers)
		y, ok2 := r.find(title, b, workers)
		if !ok1 || !ok2 {
			return math.NaN()
		}
		return x.PerS / y.PerS
	}
}

// againstBest divides by the best of the peers that ran.
func againstBest(title string, workers int) func(results) float64 {
	return func(r results) float64 {
		x, ok := r.find(title, "tierlock", workers)
		best := 0.0
		for _, peer := range peers {
			if y, ok := r.find(title, peer, workers); ok {
				best = max(best, y.PerS)
			}
		}
		if !ok || best == 0 {
			return math.NaN()
		}
		return x.PerS / best
	}
}

// figure takes one of tierlock's own.
func figure(title string, workers int, of func(result) float64) func(results) float64 {
	return func(r results) float64 {
		x, ok := r.find(title, "tierlock", workers)
		if !ok {
			return math.NaN()
		}
		return of(x)
	}
}

func extra(title string, workers int, name string) func(results) float64 {
	return figure(title, workers, func(r result) float64 { return r.Extra[name] })
}

var goals = []goal{
	{ratio: "distinct/256/naive", least: 3.5, what: "pairs/s against naive", of: against("distinct", 256, "tierlock", "naive")},
	{ratio: "distinct/1024/naive", least: 4.5, what: "pairs/s against naive", of: against("distinct", 1024, "tierlock", "naive")},
	{ratio: "distinct/256/redislock", least: 0.8, what: "pairs/s against redislock", of: against("distinct", 256, "tierlock", "redislock")},
	{ratio: "distinct/1024/redislock", least: 1, what: "pairs/s against redislock", of: against("distinct", 1024, "tierlock", "redislock")},
	{ratio: "distinct-mysql/1024/insert", least: 5, what: "pairs/s against insert, on MySQL", of: against("distinct-mysql", 1024, "tierlock", "insert")},
	{ratio: "fresh/256/distinct", least: 0.5, what: "keys never seen against warmed ones", of: against("fresh", 256, "tierlock", "distinct")},
	{ratio: "hot/64/best", least: 40, what: "tenures/s against the best peer", of: againstBest("hot", 64)},
	{ratio: "hot/64/tenures_per_s", least: 200_000, what: "tenures/s", of: figure("hot", 64, func(r result) float64 { return r.PerS })},
	{ratio: "hot/64/allocs", most: 2, what: "allocations per tenure", of: func(r results) float64 {
		// What the servers' statements allocate in between is no part of a hand-off.
		return math.Round(extra("hot", 64, "allocs")(r)*10) / 10
	}},
	{ratio: "hot-procs/64/best", least: 10, what: "tenures/s against the best peer", of: againstBest("hot-procs", 64)},
	{ratio: "hot-procs/64/share", most: 2, what: "largest against smallest process", of: extra("hot-procs", 64, "share")},
	{ratio: "hot-procs-5ms/64/efficiency", least: 0.95, what: "of the time the key is held", of: figure("hot-procs-5ms", 64, func(r result) float64 { return r.Efficiency })},
	{ratio: "contended/64/insert", least: 7.1, what: "attempts/s against insert", of: against("contended", 64, "tierlock", "insert")},
	{ratio: "contended/64/authority", least: 7.1, what: "attempts/s against tierlock without Redis", of: against("contended", 64, "tierlock", "authority")},
	{ratio: "contended/64/grants/insert", least: 1, what: "grants/s against insert", of: grants("insert")},
	{ratio: "contended/64/grants/authority", least: 1, what: "grants/s against tierlock without Redis", of: grants("authority")},
	{ratio: "contended/64/statements_per_refusal", most: 0.01, what: "MySQL statements per refused attempt", of: extra("contended", 64, "statements_per_refusal")},
	{ratio: "latency/1/raw", most: 1.15, what: "p50 of a pair against its bare round trips", of: figure("latency", 1, func(r result) float64 {
		return r.P50 / (r.Extra["raw_redis_ms"] + r.Extra["raw_mysql_ms"])
	})},
	{ratio: "held/lost", most: 0, what: "of 100,000 leases lost in three intervals", of: extra("held", 256, "lost")},
	{ratio: "held/statements_per_interval", most: 200, what: "statements in an interval", of: extra("held", 256, "statements_per_interval")},
	{ratio: "held/heap_mib", most: 100, what: "MiB of heap more", of: extra("held", 256, "heap_mib")},
	{ratio: "held/goroutines", most: 100, what: "goroutines more", of: extra("held", 256, "goroutines")},
	{ratio: "open-transaction/lost", most: 0, what: "of 999 other leases lost beside an open transaction", of: extra("open-transaction", 64, "lost")},
	{ratio: "open-transaction/left_ms", least: 10_000 / 3, what: "ms that each had left at least, of a TTL of 10 s", of: extra("open-transaction", 64, "left_ms")},
	{ratio: "open-transaction/throughput", least: 0.9, what: "throughput of other keys beside it", of: extra("open-transaction", 64, "throughput")},
	{ratio: "rows/256/1000", least: 0.8, what: "1,000,000 rows against 1,000", of: against("rows", 256, "1000000", "1000")},
}

func grants(other string) func(results) float64 {
	return func(r results) float64 {
		x, ok1 := r.find("contended", "tierlock", 64)
		y, ok2 := r.find("contended", other, 64)
		if !ok1 || !ok2 {
			return math.NaN()
		}
		return x.Extra["grants_per_s"] / y.Extra["grants_per_s"]
	}
}

// met reports whether the figure is what it should be.
func (g goal) met(v float64) bool {
	if g.least > 0 {
		return v >= g.least
	}
	return v <= g.most
}

func (g goal) bound() string {
	if g.least > 0 {
		return fmt.Sprintf("at least %.4g", g.least)
	}
	return fmt.Sprintf("at most %.4g", g.most)
}

// conclude prints the ratios of what ran.
func (b *bench) conclude() error {
	ratios := make(map[string]float64)
	var table strings.Builder
	for _, g := range goals {
		v := g.of(b.results)
		if math.IsNaN(v) {
			continue
		}
		ratios[g.ratio] = math.Round(v*1000) / 1000
		mark := "ok"
		if !g.met(v) {
			mark = "MISSED"
		}
		fmt.Fprintf(&table, "%-36s %12.4g  %-18s %-6s  %s\n", g.ratio, v, g.bound(), mark, g.what)
	}
	if b.json {
		return json.NewEncoder(b.out).Encode(map[string]any{"ratios": ratios})
	}
	if _, err := fmt.Fprint(b.out, b.table(), "\n", table.String()); err != nil {
		return err
	}
	if b.report != "" {
		return b.writeReport()
	}
	return nil
}

// table is what everybody reached.
func (b *bench) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "%-18s %-12s %7s %5s %11s %9s %9s %10s\n", "case", "lock", "workers", "procs", "per second", "p50 ms", "p99 ms", "efficiency")
	for _, r := range b.results {
		fmt.Fprintf(&t, "%-18s %-12s %7d %5d %11.0f %9.3f %9.3f %10.3f\n", r.Case, r.Lock, r.Workers, r.Procs, r.PerS, r.P50, r.P99, r.Efficiency)
	}
	return t.String()
}
