// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"
)

// warmKeys are the keys whose rows exist before anything is measured.
const warmKeys = 100_000

// benchCase is one table of the report: the same loop for several locks.
type benchCase struct {
	name    string // for -case
	label   string // in results, where one name has several
	loop    string
	locks   []string
	against []entrant // further ones, which are no locks of their own
	workers []int     // in all
	procs   int
	keys    int
	hold    time.Duration
	pause   time.Duration
	spans   bool // watch for overlaps, and measure the efficiency
	waits   bool // for each other: the back-off of those that poll matters
	mysql   bool // on MySQL, whatever the engine of the rest
	own     bool // on a server of its own, with a table for each number of keys
}

// entrant is a line of the report.
type entrant struct {
	name, lock, loop string
	keys             int
}

func (c benchCase) entrants(only []string) []entrant {
	var all []entrant
	for _, l := range c.locks {
		if only == nil || slices.Contains(only, l) {
			all = append(all, entrant{l, l, c.loop, c.keys})
		}
	}
	return append(all, c.against...)
}

var (
	peers    = []string{"redislock", "redsync", "rueidislock", "getlock", "insert", "naive", "etcd"}
	everyone = append([]string{"tierlock"}, peers...)
)

var cases = []benchCase{
	{name: "distinct", loop: "distinct", locks: []string{"tierlock", "redislock", "naive"}, workers: []int{64}, procs: 1, keys: warmKeys},
	{name: "distinct", loop: "distinct", locks: everyone, workers: []int{256, 1024}, procs: 1, keys: warmKeys},
	{name: "distinct", label: "distinct-mysql", loop: "distinct", locks: []string{"tierlock", "insert"}, workers: []int{1024}, procs: 1, keys: warmKeys, mysql: true},
	{
		name: "fresh", loop: "fresh", locks: []string{"tierlock"}, workers: []int{256}, procs: 1, keys: warmKeys,
		against: []entrant{{"distinct", "tierlock", "distinct", warmKeys}},
	},
	{name: "hot", loop: "hot", locks: everyone, workers: []int{64}, procs: 1, keys: 1, spans: true, waits: true},
	{name: "hot-procs", loop: "hot", locks: everyone, workers: []int{64}, procs: 4, keys: 1, spans: true, waits: true},
	{name: "hot-procs", label: "hot-procs-5ms", loop: "hot", locks: everyone, workers: []int{64}, procs: 4, keys: 1, hold: 5 * time.Millisecond, spans: true, waits: true},
	{name: "contended", loop: "contended", locks: []string{"tierlock", "authority", "insert"}, workers: []int{64}, procs: 4, keys: 8, hold: time.Millisecond, pause: time.Millisecond, spans: true},
	{name: "latency", loop: "latency", locks: []string{"tierlock"}, workers: []int{1}, procs: 1, keys: 1000},
	{name: "held", loop: "held", locks: []string{"tierlock"}, workers: []int{256}, procs: 1, keys: 100_000},
	{name: "held", label: "open-transaction", loop: "open", locks: []string{"tierlock"}, workers: []int{64}, procs: 1, keys: warmKeys},
	{name: "rows", workers: []int{256}, procs: 1, own: true, against: []entrant{
		{"1000", "tierlock", "distinct", 1000}, {"1000000", "tierlock", "distinct", 1_000_000},
	}},
}

func caseNames() []string {
	var names []string
	for _, c := range cases {
		if !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	}
	return names
}

func (c benchCase) title() string {
	if c.label != "" {
		return c.label
	}
	return c.name
}
