// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

// scene is one run of the story.
type scene struct {
	title    string
	lock     string
	guard    bool
	fault    string
	duration time.Duration
	breaks   bool // what it is there to show
}

// scenes put each control right before what it controls.
var scenes = []scene{
	{"No lock.", lockNone, false, faultNone, 3 * time.Second, true},
	{"A lock in Redis alone, and Redis forgets.", lockRedis, false, faultRedisFlush, 6 * time.Second, true},
	{"tierlock, and Redis forgets.", lockTierlock, true, faultRedisFlush, 6 * time.Second, false},
	{"tierlock without its guard, and a holder freezes past its lease.", lockTierlock, false, faultHolderPause, 8 * time.Second, true},
	{"tierlock, and a holder freezes past its lease.", lockTierlock, true, faultHolderPause, 8 * time.Second, false},
	{"tierlock, and MySQL falls silent.", lockTierlock, true, faultMySQLPause, 8 * time.Second, false},
}

// over is the command line with what the scene chooses.
func (sc scene) over(o options) options {
	o.lock, o.guard, o.fault, o.duration = sc.lock, sc.guard, sc.fault, sc.duration
	return o
}

// tell plays all scenes on the same servers. It returns the exit code: 0 when
// the controls broke and what they control held.
func (s *stage) tell(ctx context.Context, servers *servers) int {
	code := exitHeld
	var ends []string
	for i, scene := range scenes {
		fmt.Fprintf(s.out, "\n%d of %d. %s\n", i+1, len(scenes), scene.title)
		run := *s
		run.options = scene.over(s.options)
		outcome, err := run.play(ctx, servers)
		if err != nil {
			fmt.Fprintln(s.stderr, "demo:", err)
			return exitSetup
		}
		findings := outcome.findings()
		narrate(s.out, outcome, findings)
		broke := !outcome.result(findings).OK
		end := "held"
		if broke {
			end = "BROKE"
		}
		if outcome.interrupted {
			end += ", interrupted"
		} else if broke != scene.breaks {
			end += ", and should not have"
			code = exitBroke
		}
		ends = append(ends, fmt.Sprintf("  %-66s %s: %d writes, %d oversold, %d late writes refused",
			scene.title, end, outcome.tally.writes(), outcome.books.oversold, outcome.tally.Rejected))
		if outcome.interrupted {
			break
		}
	}
	fmt.Fprintln(s.out, "\nThe story:")
	for _, end := range ends {
		fmt.Fprintln(s.out, end)
	}
	return code
}
