// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

// bench is one run of the command.
type bench struct {
	config
	out, progress io.Writer

	servers servers
	spanDir string
	began   time.Time
	results []result
}

// result is what one lock reached in one case: medians of the rounds.
type result struct {
	Case       string             `json:"case"`
	Lock       string             `json:"lock"`
	Workers    int                `json:"workers"`
	Procs      int                `json:"procs"`
	PerS       float64            `json:"per_s"`
	P50        float64            `json:"p50_ms"`
	P99        float64            `json:"p99_ms"`
	Efficiency float64            `json:"efficiency"`
	Engine     string             `json:"engine"`
	BackoffMS  float64            `json:"backoff_ms,omitempty"`
	Errors     int64              `json:"errors,omitempty"`
	Extra      map[string]float64 `json:"extra,omitempty"`
}

// warm is how long a measurement runs before it counts.
const warm = 300 * time.Millisecond

func (b *bench) run(ctx context.Context) (err error) {
	b.began = time.Now()
	if b.spanDir, err = os.MkdirTemp("", "tierlock-bench-"); err != nil {
		return err
	}
	b.servers.dirs = append(b.servers.dirs, b.spanDir)
	defer func() { err = errors.Join(err, b.servers.stop()) }()
	for _, c := range cases {
		if !slices.Contains(b.cases, c.name) {
			continue
		}
		if err := b.runCase(ctx, c); err != nil {
			return fmt.Errorf("case %s: %w", c.title(), err)
		}
	}
	return b.conclude()
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "%6.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// running is an entrant with all it needs, and what it has reached so far.
type running struct {
	entrant
	base   task
	rounds []result
}

func (b *bench) runCase(ctx context.Context, c benchCase) error {
	entrants := c.entrants(b.locks)
	if len(entrants) == 0 {
		return nil
	}
	engine, pool, workers := b.engine, "1G", c.workers
	if c.mysql {
		engine = stack.MySQL
	}
	if c.own {
		pool = "1024M" // the same size, another server
	}
	if b.workers > 0 {
		workers = []int{b.workers}
	}
	server, err := b.servers.sqlServer(ctx, engine, pool)
	if err != nil {
		return err
	}
	redisURL, err := b.servers.redisURL(ctx)
	if err != nil {
		return err
	}
	databases := make(map[int]*stack.Database) // by keys
	for _, e := range entrants {
		n := max(e.keys, 1000)
		if c.loop == "held" {
			n = 1000 // it makes its own
		}
		if databases[n] == nil {
			b.say("%s: a table of %d rows on %v", c.title(), n, engine)
			if databases[n], err = database(ctx, server, n); err != nil {
				return err
			}
		}
	}
	for _, n := range workers {
		var all []*running
		for _, e := range entrants {
			keys := max(e.keys, 1000)
			if c.loop == "held" {
				keys = 1000
			}
			t := task{
				Loop: e.loop, Lock: e.lock, Redis: redisURL, DSN: databases[keys].DSN(), Workers: max(n/c.procs, 1), Keys: e.keys,
				Hold: c.hold, Pause: c.pause, Backoff: backoffs[1],
			}
			if e.lock == "etcd" {
				if t.Etcd, err = b.servers.etcdEndpoint(ctx); err != nil {
					return err
				}
			}
			all = append(all, &running{entrant: e, base: t})
		}
		if err := b.compete(ctx, c, n, engine, all); err != nil {
			return err
		}
	}
	for _, d := range databases {
		err = errors.Join(err, d.Drop(ctx))
	}
	return err
}

// compete runs the rounds, and in each round everybody once.
func (b *bench) compete(ctx context.Context, c benchCase, workers int, engine stack.Engine, all []*running) error {
	if c.waits {
		for _, r := range all {
			if err := b.calibrate(ctx, c, r); err != nil {
				return err
			}
		}
	}
	rounds, duration := b.rounds, b.duration
	switch c.loop {
	case "held":
		rounds = 1 // it lasts as long as three renewals
	case "open":
		rounds, duration = 1, 2*openFor
	}
	for round := range rounds {
		for _, r := range all {
			got, err := b.once(ctx, c, r, round, duration)
			if err != nil {
				return err
			}
			got.Workers, got.Engine = workers, engine.String()
			r.rounds = append(r.rounds, got)
			b.say("%s, %d workers, round %d of %d: %-11s %9.0f/s  p50 %.3f ms%s", c.title(), workers, round+1, rounds, r.name, got.PerS, got.P50, extras(got))
		}
	}
	for _, r := range all {
		m := median(r.rounds)
		b.results = append(b.results, m)
		if b.json {
			if err := json.NewEncoder(b.out).Encode(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func extras(r result) string {
	var s string
	if r.Efficiency > 0 {
		s = fmt.Sprintf("  efficiency %.3f", r.Efficiency)
	}
	for _, name := range slices.Sorted(keysOf(r.Extra)) {
		s += fmt.Sprintf("  %s %.4g", name, r.Extra[name])
	}
	if r.Errors > 0 {
		s += fmt.Sprintf("  %d errors", r.Errors)
	}
	return s
}

// calibrate gives a lock that polls the back-off that serves it best here.
func (b *bench) calibrate(ctx context.Context, c benchCase, r *running) error {
	if !makerOf(r.lock).polls {
		return nil
	}
	var best float64
	var at time.Duration
	for i, backoff := range backoffs {
		r.base.Backoff = backoff
		got, err := b.once(ctx, c, r, -1-i, min(b.duration, time.Second))
		if err != nil {
			return err
		}
		if got.PerS >= best {
			best, at = got.PerS, backoff
		}
	}
	r.base.Backoff = at
	b.say("%s: %s is best with a back-off of %v", c.title(), r.name, at)
	return nil
}

// once is one measurement.
func (b *bench) once(ctx context.Context, c benchCase, r *running, round int, duration time.Duration) (result, error) {
	tasks := make([]task, c.procs)
	for i := range tasks {
		tasks[i] = r.base
		tasks[i].Proc, tasks[i].Round = i, round
		if c.loop == "held" {
			tasks[i].TTL = 30 * time.Second
		}
		if b.profile != "" && round >= 0 {
			tasks[i].Profile = filepath.Join(b.profile, fmt.Sprintf("%s-%s-%d-%d-%d.pprof", c.title(), r.name, r.base.Workers*c.procs, round, i))
		}
		if c.spans {
			tasks[i].Spans = filepath.Join(b.spanDir, fmt.Sprint("spans-", i))
		}
	}
	w, all, err := measure(ctx, tasks, warm, duration)
	if err != nil {
		return result{}, err
	}
	res := result{Case: c.title(), Lock: r.name, Procs: c.procs, Extra: make(map[string]float64)}
	if makerOf(r.lock).polls && c.waits {
		res.BackoffMS = r.base.Backoff.Seconds() * 1000
	}
	var attempts, grants int64
	latencies := make(map[int64]int64)
	least, most := all[0].Grants, all[0].Grants
	for _, m := range all {
		attempts, grants, res.Errors = attempts+m.Attempts, grants+m.Grants, res.Errors+m.Errors
		least, most = min(least, m.Grants), max(most, m.Grants)
		for us, n := range m.Latencies {
			latencies[us] += n
		}
		for name, v := range m.Extra {
			res.Extra[name] += v / float64(len(all))
		}
		if m.LastError != "" {
			b.say("%s: %s: %d errors, the last one: %s", c.title(), r.name, m.Errors, m.LastError)
		}
	}
	res.PerS = float64(grants) / w.seconds()
	if c.loop == "contended" {
		res.Extra["grants_per_s"] = res.PerS
		res.Extra["statements_per_refusal"] = res.Extra["statements"] * float64(len(all)) / float64(max(attempts-grants, 1))
		res.PerS = float64(attempts) / w.seconds()
	}
	delete(res.Extra, "statements")
	if c.procs > 1 {
		res.Extra["share"] = float64(most) / float64(max(least, 1))
	}
	res.P50, res.P99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
	if c.spans {
		var spans []span
		for _, t := range tasks {
			of, err := readSpans(t.Spans)
			if err != nil {
				return res, err
			}
			spans = append(spans, of...)
		}
		if res.Efficiency, err = efficiency(spans, w, c.keys); err != nil {
			return res, fmt.Errorf("%s: %w", r.name, err)
		}
		if c.procs > 1 {
			res.Extra["handover_ms"] = handOver(spans)
		}
	}
	return res, nil
}
