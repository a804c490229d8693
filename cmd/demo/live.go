// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tierlock/tierlock/fallback"
)

// live prints a line a second while the shop is open.
type live struct {
	out      io.Writer
	shop     *shop
	crew     *crew
	sabotage *saboteur
	last     tally
	rungs    map[*process]string // as shown
}

// until returns at the end, when ctx ends, or with the reason of a node that
// crashed.
func (l *live) until(ctx context.Context, end time.Time, crashed <-chan error) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	look := time.NewTicker(reportEvery)
	defer look.Stop()
	lined := time.Now()
	over := time.After(time.Until(end))
	for second := 1; ; {
		select {
		case <-over:
			if time.Since(lined) > 900*time.Millisecond { // this second is over too
				l.line(ctx, second)
			}
			return nil
		case <-ctx.Done():
			return nil
		case err := <-crashed:
			return err
		case <-look.C:
			l.changes()
		case <-tick.C:
			l.line(ctx, second)
			lined = time.Now()
			second++
		}
	}
}

// changes says which node's policy went to another rung.
func (l *live) changes() {
	if l.rungs == nil {
		l.rungs = make(map[*process]string)
	}
	for _, p := range l.crew.nodes {
		now, shown := p.standsOn(), l.rungs[p]
		l.rungs[p] = now
		switch {
		case now == shown || now == "" || shown == "":
		case now == fallback.None.String():
			fmt.Fprintf(l.out, "           node %d: inventory/** asks MySQL again\n", p.number)
		default:
			fmt.Fprintf(l.out, "           node %d: inventory/** is on the rung %s\n", p.number, now)
		}
	}
}

func (l *live) line(ctx context.Context, second int) {
	sum := l.crew.counted()
	stock := "?"
	if n := l.shop.glance(ctx); n >= 0 {
		stock = fmt.Sprint(n)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%5d s  %5d attempts/s  %5d writes/s  stock %4s", second,
		sum.Attempts-l.last.Attempts, sum.writes()-l.last.writes(), stock)
	for _, part := range []struct {
		name string
		n    int64
	}{
		{"full", sum.Levels.Full - l.last.Levels.Full},
		{"authority", sum.Levels.Authority - l.last.Levels.Authority},
		{"filter", sum.Levels.Filter - l.last.Levels.Filter},
		{"local", sum.Levels.Local - l.last.Levels.Local},
		{"replayed", sum.Replayed - l.last.Replayed},
		{"refused writes", sum.Rejected - l.last.Rejected},
	} {
		if part.n > 0 {
			fmt.Fprintf(&b, "  %s %d", part.name, part.n)
		}
	}
	if fault, _ := l.sabotage.underWay.Load().(string); fault != "" {
		fmt.Fprintf(&b, "  <- %s", fault)
	}
	fmt.Fprintln(l.out, b.String())
	l.last = sum
}
