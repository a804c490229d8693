// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// nodeEnv makes the program a node: the parent starts itself with it set.
const nodeEnv = "TIERLOCK_DEMO_NODE"

// setup is the first line on a node's standard input. Addresses travel there
// and not on the command line, where everybody could read the password.
type setup struct {
	Node    int
	Nodes   int
	Sells   bool // the scenario has an inventory
	Pays    bool // and payments
	Listen  string
	Lock    string
	Guard   bool
	Redis   string
	MySQL   string
	Workers int
	Conns   int // of the business pool
	Config  document
	TTL     time.Duration
	Seed    int64
}

// pays says what a worker does: with both in the shop, every other one pays.
func (s setup) pays(worker int) bool { return s.Pays && (!s.Sells || worker%2 == 1) }

// command is every further line. The end of the input means that the parent
// died.
type command struct {
	Do string
}

const (
	doStart = "start" // let the workers go
	doPause = "pause" // stop the process inside a critical section, once
	doStop  = "stop"  // let the workers finish what they hold, and end
)

// report is a line on a node's standard output.
type report struct {
	Kind    string
	Tally   tally    // totals so far
	Rung    string   `json:",omitempty"` // of the products' policy, now
	Addr    string   `json:",omitempty"` // where the node serves; with saysReady
	Metrics counters // with saysDone: what the lock counted itself
	Tenures []tenure `json:",omitempty"` // those that ended since the last report
	Error   string   `json:",omitempty"`
}

const (
	saysReady    = "ready"
	saysProgress = "progress"
	saysPausing  = "pausing" // sent right before the process stops itself
	saysResumed  = "resumed" // the clock has shown the gap
	saysDone     = "done"
	saysFailed   = "failed" // Error says why; the node ends
)

// tally counts what the workers of a node did.
type tally struct {
	Attempts    int64
	Acquired    int64
	Held        int64
	Unavailable int64
	Cancelled   int64
	Lost        int64 // turns that ended before their holder gave them back
	Sold        int64 // committed orders
	Restocked   int64 // committed restocks
	Paid        int64 // committed payments
	Replayed    int64 // payments that were answered before
	Differing   int64 // of them with another answer
	Served      int64 // requests of clients that are no workers
	Rejected    int64 // writes that the lease row refused
	Failed      int64 // writes that failed otherwise, or whose outcome is unknown
	Levels      levels
	Trouble     string
}

// levels counts turns by what stood behind them.
type levels struct {
	Full      int64 `json:"full"`
	Authority int64 `json:"authority"`
	Filter    int64 `json:"filter"`
	Local     int64 `json:"local"`
}

func (l *levels) add(which level) {
	switch which {
	case levelFull:
		l.Full++
	case levelAuthority:
		l.Authority++
	case levelFilter:
		l.Filter++
	case levelLocal:
		l.Local++
	}
}

func (t tally) plus(other tally) tally {
	t.Attempts += other.Attempts
	t.Acquired += other.Acquired
	t.Held += other.Held
	t.Unavailable += other.Unavailable
	t.Cancelled += other.Cancelled
	t.Lost += other.Lost
	t.Sold += other.Sold
	t.Restocked += other.Restocked
	t.Paid += other.Paid
	t.Replayed += other.Replayed
	t.Differing += other.Differing
	t.Served += other.Served
	t.Rejected += other.Rejected
	t.Failed += other.Failed
	t.Levels.Full += other.Levels.Full
	t.Levels.Authority += other.Levels.Authority
	t.Levels.Filter += other.Levels.Filter
	t.Levels.Local += other.Levels.Local
	if t.Trouble == "" {
		t.Trouble = other.Trouble
	}
	return t
}

func (t tally) writes() int64 { return t.Sold + t.Restocked + t.Paid }
