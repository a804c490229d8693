// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// miscounted is the seed of a run whose metrics say something else.
const miscounted = 13

// sound is a run of four seconds in which everything held.
func sound(change func(*outcome)) outcome {
	sec := instant(time.Second)
	log := func(l level) []tenure {
		return []tenure{
			{Level: levelFull, Wait: 2 * time.Millisecond, From: sec, Until: sec + 100, Wrote: sec + 50},
			{Level: l, Wait: 4 * time.Millisecond, From: 3 * sec, Until: 3*sec + 100, Wrote: 3*sec + 50, Product: 1},
		}
	}
	o := outcome{
		options: options{scenario: scenarioInventory, lock: lockTierlock, guard: true, fault: faultNone, nodes: 2, workers: 4},
		begin:   0, end: 4 * sec,
		tally: tally{
			Attempts: 10, Acquired: 4, Held: 3, Unavailable: 2, Cancelled: 1, Sold: 3, Restocked: 1,
			Levels: levels{Full: 4},
		},
		books: books{orders: 3, stock: 5},
	}
	o.logs = [][]tenure{log(levelFull), log(levelFull)}
	for i := range o.logs[1] {
		o.logs[1][i].Product += 10
	}
	change(&o)
	o.metrics = o.tally.counters()
	if o.seed == miscounted {
		o.metrics.Held++
	}
	return o
}

func TestOutcome_findings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*outcome)
		breaks string // part of the promise that broke; empty: all held
	}{
		"sound":            {func(*outcome) {}, ""},
		"oversold":         {func(o *outcome) { o.books.oversold = 1 }, "not there"},
		"overlap":          {func(o *outcome) { o.logs[1][0].Product = 0 }, "one holder"},
		"order missing":    {func(o *outcome) { o.books.orders = 2 }, "in the books"},
		"unknown outcome":  {func(o *outcome) { o.books.orders = 4 }, ""},
		"miscounted":       {func(o *outcome) { o.seed = miscounted }, "metrics say"},
		"attempt missing":  {func(o *outcome) { o.tally.Attempts = 11 }, "has an answer"},
		"silence":          {func(o *outcome) { o.logs[0][0].Wrote, o.logs[1][0].Wrote = 0, 0 }, "keeps selling"},
		"silence at end":   {func(o *outcome) { o.end = 6 * instant(time.Second) }, "keeps selling"},
		"nothing written":  {func(o *outcome) { *o = outcome{options: o.options, end: 1} }, "keeps selling"},
		"fault missing":    {func(o *outcome) { o.fault, o.planned, o.injected = faultRedisFlush, 3, 2 }, "as planned"},
		"faults":           {func(o *outcome) { o.fault, o.planned, o.injected = faultRedisFlush, 3, 3 }, ""},
		"nobody refused":   {func(o *outcome) { o.fault = faultHolderPause }, "refused"},
		"refused":          {func(o *outcome) { o.fault, o.tally.Rejected = faultHolderPause, 2 }, ""},
		"no guard":         {func(o *outcome) { o.fault, o.guard = faultHolderPause, false }, ""},
		"never without":    {func(o *outcome) { o.fault = faultRedisKill }, "carries on"},
		"without and back": {func(o *outcome) { o.fault, o.tally.Levels.Authority = faultRedisKill, 1 }, ""},
		"not back at end": {func(o *outcome) {
			o.fault, o.tally.Levels.Authority = faultRedisKill, 1
			o.logs[1][1].Level = levelAuthority
		}, "carries on"},
		"interrupted":              {func(o *outcome) { o.interrupted, o.fault, o.planned = true, faultRedisFlush, 9 }, ""},
		"interrupted and oversold": {func(o *outcome) { o.interrupted, o.books.oversold = true, 1 }, "not there"},
	} {
		o := sound(c.change)
		findings := o.findings()
		var broken []string
		for _, f := range findings {
			if !f.held {
				broken = append(broken, f.promise)
			}
		}
		if c.breaks == "" && len(broken) > 0 || c.breaks != "" && (len(broken) != 1 || !strings.Contains(broken[0], c.breaks)) {
			t.Errorf("%s: broke %q, want %q", name, broken, c.breaks)
		}
		if ok := o.result(findings).OK; ok != (c.breaks == "") {
			t.Errorf("%s: ok %t", name, ok)
		}
		var said bytes.Buffer
		narrate(&said, o, findings)
		if got := strings.Contains(said.String(), "NOT OK"); got != (c.breaks != "") {
			t.Errorf("%s: the verdict reads\n%s", name, said.String())
		}
	}
}

func TestOutcome_result(t *testing.T) {
	t.Parallel()
	o := sound(func(o *outcome) { o.seed, o.injected, o.tally.Rejected, o.tally.Lost = 7, 2, 5, 6 })
	var line bytes.Buffer
	if err := o.result(o.findings()).print(&line); err != nil {
		t.Fatal(err)
	}
	want := `{"scenario":"inventory","lock":"tierlock","guard":true,"fault":"none","faults":2,"seed":7,"nodes":2,"workers":4,` +
		`"seconds":4,"attempts":10,"acquired":4,"held":3,"unavailable":2,"cancelled":1,"lost":6,"writes":4,"oversold":0,` +
		`"double_charged":0,"money":0,"stale_rejected":5,"replayed":0,"overlaps":0,` +
		`"levels":{"full":4,"authority":0,"filter":0,"local":0},"acquire_per_s":1,"p50_ms":2,"p99_ms":4,"ok":true}` + "\n"
	if line.String() != want {
		t.Errorf("got  %swant %s", line.String(), want)
	}
	if !json.Valid(line.Bytes()) {
		t.Error("not JSON")
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		of   []time.Duration
		p    int
		want time.Duration
	}{
		{nil, 50, 0},
		{[]time.Duration{7}, 1, 7},
		{[]time.Duration{7}, 99, 7},
		{[]time.Duration{1, 2, 3}, 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("p%d of %d values: %d, want %d", c.p, len(c.of), got, c.want)
		}
	}
}

func TestBooks_add(t *testing.T) {
	t.Parallel()
	var b books
	b.add(60, 100, 40)  // all accounted for
	b.add(70, 100, 33)  // three sold that were not there
	b.add(150, 200, 49) // one missing from the shelf: no sale without stock, and no credit for the others
	if want := (books{orders: 122, stock: 280, oversold: 3}); b != want {
		t.Errorf("%+v, want %+v", b, want)
	}
}
