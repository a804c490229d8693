// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// writeReport writes what ran as a page, and the throughput of distinct keys as
// a picture.
func (b *bench) writeReport() error {
	var md strings.Builder
	fmt.Fprintf(&md, "# Benchmarks\n\nWritten by `make bench`: %d rounds of %v each, interleaved, medians; %d cores, clients and servers on one machine",
		b.rounds, b.duration, runtime.NumCPU())
	for _, one := range b.servers.versions() {
		fmt.Fprintf(&md, ", %s", one)
	}
	md.WriteString("; default durability (one flush to disk per commit, on MySQL one of the binary log too).\n" +
		"Ratios count: absolute figures are those of a small machine. What the cases are stands in `bench/cases.go`.\n\n" +
		"![pairs a second over workers](bench.svg)\n\n## Goals\n\n| figure | measured | goal | |\n|---|---|---|---|\n")
	for _, g := range goals {
		v := g.of(b.results)
		if math.IsNaN(v) {
			continue
		}
		missed := ""
		if !g.met(v) {
			missed = "**missed**"
		}
		fmt.Fprintf(&md, "| `%s`: %s | %s | %s | %s |\n", g.ratio, g.what, short(v), g.bound(), missed)
	}
	md.WriteString("\nWhat keeps the missed ones from being met is in [decisions.md](decisions.md#speed).\n\n## Everything\n\n" +
		"A pair is an acquire and a release. `authority` is tierlock without Redis, `naive` is `SET NX`, `INSERT`, `DELETE`, `DEL`;\n" +
		"locks that poll have the best of four back-offs. Efficiency is the share of the time in which the keys were held.\n\n" +
		"| case | engine | lock | workers | processes | per second | p50 ms | p99 ms | efficiency | back-off ms |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range b.results {
		fmt.Fprintf(&md, "| %s | %s | %s | %d | %d | %.0f | %.3g | %.3g | %s | %s |\n",
			r.Case, r.Engine, r.Lock, r.Workers, r.Procs, r.PerS, r.P50, r.P99, orNothing(r.Efficiency), orNothing(r.BackoffMS))
	}
	return errors.Join(
		os.WriteFile(filepath.Join(b.report, "bench.md"), []byte(md.String()), 0o644),
		b.draw(filepath.Join(b.report, "bench.svg")),
	)
}

func short(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func orNothing(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g", v)
}

// draw shows pairs a second over workers, a line for each lock.
func (b *bench) draw(path string) error {
	lines := make(map[string]plotter.XYs)
	for _, r := range b.results {
		if r.Case == "distinct" {
			lines[r.Lock] = append(lines[r.Lock], plotter.XY{X: float64(r.Workers), Y: r.PerS})
		}
	}
	if len(lines) == 0 {
		return nil // that case did not run
	}
	p := plot.New()
	p.Title.Text = "distinct keys: acquire + release per second"
	p.X.Label.Text, p.Y.Label.Text = "workers", "pairs per second"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks{{Value: 64, Label: "64"}, {Value: 256, Label: "256"}, {Value: 1024, Label: "1,024"}}
	p.Y.Min = 0
	p.BackgroundColor = color.White
	p.Legend.Top = true
	p.Legend.Left = true
	for i, name := range slices.Sorted(keysOf(lines)) {
		line, points, err := plotter.NewLinePoints(lines[name])
		if err != nil {
			return err
		}
		line.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
		points.Shape = draw.CircleGlyph{}
		if name == "tierlock" {
			line.Width = vg.Points(3)
		}
		p.Add(line, points)
		p.Legend.Add(name, line, points)
	}
	p.Add(plotter.NewGrid())
	return p.Save(7*vg.Inch, 4*vg.Inch, path)
}
