// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"math"
	"time"
)

// result is the JSON object that programs read.
type result struct {
	Scenario      string  `json:"scenario"`
	Lock          string  `json:"lock"`
	Guard         bool    `json:"guard"`
	Fault         string  `json:"fault"`
	Faults        int     `json:"faults"`
	Seed          int64   `json:"seed"`
	Nodes         int     `json:"nodes"`
	Workers       int     `json:"workers"`
	Seconds       float64 `json:"seconds"`
	Attempts      int64   `json:"attempts"`
	Acquired      int64   `json:"acquired"`
	Held          int64   `json:"held"`
	Unavailable   int64   `json:"unavailable"`
	Cancelled     int64   `json:"cancelled"`
	Lost          int64   `json:"lost"`
	Writes        int64   `json:"writes"`
	Oversold      int64   `json:"oversold"`
	DoubleCharged int64   `json:"double_charged"`
	Money         int64   `json:"money"`
	StaleRejected int64   `json:"stale_rejected"`
	Replayed      int64   `json:"replayed"`
	Overlaps      int64   `json:"overlaps"`
	Levels        levels  `json:"levels"`
	AcquirePerS   float64 `json:"acquire_per_s"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	OK            bool    `json:"ok"`
	Error         string  `json:"error,omitempty"`
}

func (o outcome) result(findings []finding) result {
	waits := o.waits()
	r := result{
		Scenario: o.scenario, Lock: o.lock, Guard: o.guarded(), Fault: o.fault, Faults: o.injected,
		Seed: o.seed, Nodes: o.nodes, Workers: o.workers, Seconds: round(o.seconds()),
		Attempts: o.tally.Attempts, Acquired: o.tally.Acquired, Held: o.tally.Held,
		Unavailable: o.tally.Unavailable, Cancelled: o.tally.Cancelled, Lost: o.tally.Lost,
		Writes: o.tally.writes(), Oversold: o.books.oversold, StaleRejected: o.tally.Rejected,
		DoubleCharged: o.bank.double, Money: o.bank.money, Replayed: o.tally.Replayed,
		Overlaps: o.overlaps(), Levels: o.tally.Levels,
		P50: millis(percentile(waits, 50)), P99: millis(percentile(waits, 99)),
		OK: true,
	}
	if o.seconds() > 0 {
		r.AcquirePerS = round(float64(o.tally.Acquired) / o.seconds())
	}
	for _, f := range findings {
		r.OK = r.OK && f.held
	}
	return r
}

func (r result) print(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

func millis(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func round(f float64) float64 { return math.Round(f*1000) / 1000 }
