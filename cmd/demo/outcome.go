// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"time"
)

// outcome is what a run left behind: everything the verdict rests on.
type outcome struct {
	options
	interrupted bool
	planned     int // faults
	injected    int
	outages     []outage // of MySQL
	begin, end  instant
	tally       tally
	metrics     counters   // the lock's own
	logs        [][]tenure // by node
	books       books
	bank        accountsBooks
}

func (o outcome) seconds() float64 { return o.end.sub(o.begin).Seconds() }

func (o outcome) overlaps() int64 { return overlaps(slices.Concat(o.logs...)) }

// silence is the longest time without a write while MySQL was up, the ends of the
// run included.
func (o outcome) silence() time.Duration {
	marks := []instant{o.begin, o.end}
	for _, out := range o.outages {
		marks = append(marks, out.from, out.until)
	}
	for _, log := range o.logs {
		for _, t := range log {
			if t.Wrote > o.begin && t.Wrote < o.end {
				marks = append(marks, t.Wrote)
			}
		}
	}
	slices.Sort(marks)
	var longest time.Duration
	for i := 1; i < len(marks); i++ {
		if !slices.ContainsFunc(o.outages, func(out outage) bool { return out.from <= marks[i-1] && marks[i] <= out.until }) {
			longest = max(longest, marks[i].sub(marks[i-1]))
		}
	}
	return longest
}

// fullAtEnd reports whether the last turn of every node had both tiers behind it.
func (o outcome) fullAtEnd() bool {
	for _, log := range o.logs {
		if len(log) == 0 {
			return false
		}
		last := slices.MaxFunc(log, func(a, b tenure) int { return cmp.Compare(a.From, b.From) })
		if last.Level != levelFull {
			return false
		}
	}
	return len(o.logs) > 0
}

// waits are the times that successful acquires took, sorted.
func (o outcome) waits() []time.Duration {
	var all []time.Duration
	for _, log := range o.logs {
		for _, t := range log {
			all = append(all, t.Wait)
		}
	}
	slices.Sort(all)
	return all
}

// percentile is the smallest value that p percent of the sorted values do not
// exceed; 0 of none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}
