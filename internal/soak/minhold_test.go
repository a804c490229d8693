// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

func init() { roles["job"] = runJob }

const (
	jobPeriod = 1500 * time.Millisecond
	jobSkew   = 400 * time.Millisecond // the last process tries that much after the first
	jobHold   = time.Second
	jobLate   = 250 * time.Millisecond // a process that wakes up later leaves the period out, as cron does
)

// Five processes whose clocks differ try a job once a period: it runs exactly once
// in each, by the clock of the server.
func TestMinHold_oncePerPeriod(t *testing.T) {
	periods := 5
	if soak {
		periods = 20
	}
	t.Parallel() // it waits more than it works
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		if !soak {
			t.Parallel()
		}
		s.Exec(t, "CREATE TABLE ran (id BIGINT AUTO_INCREMENT PRIMARY KEY, node INT NOT NULL, fence BIGINT UNSIGNED NOT NULL, at DATETIME(6) NOT NULL)")
		heard := newSpans()
		var nodes []*process
		for i := range 5 {
			ready := make(chan struct{})
			nodes = append(nodes, startProcess(t, "job", nodeSettings(s, i, map[string]string{"periods": strconv.Itoa(periods)}), func(line string) {
				if line == "ready" {
					close(ready)
				}
				heard.hear(line)
			}))
			select {
			case <-ready:
			case <-nodes[i].done:
				heard.check(t)
				t.Fatalf("a process ended at once with %v", nodes[i].err)
			}
		}
		start := time.Now().Add(200 * time.Millisecond)
		for _, n := range nodes {
			if _, err := fmt.Fprintln(n.stdin, start.UnixNano()); err != nil {
				t.Fatal(err)
			}
		}
		end := start.Add(time.Duration(periods) * jobPeriod)
		for time.Now().Before(end) {
			if int(time.Since(start)/jobPeriod)%2 == 1 { // MySQL alone keeps the key in every other period
				s.Flush(t)
			}
			time.Sleep(50 * time.Millisecond)
		}
		for _, n := range nodes {
			if err := n.end(); err != nil {
				t.Errorf("a process ended with %v", err)
			}
		}
		heard.check(t)
		checkRuns(t, s, start, periods)
		if met := heard.said["held"]; met < periods {
			t.Errorf("%d tries met the lock: nothing was kept out", met)
		}
	})
}

// checkRuns counts the runs of each period. The server runs on this machine: its
// clock is ours.
func checkRuns(t *testing.T, s *tiers.Tiers, start time.Time, periods int) {
	t.Helper()
	const offset = "TIMESTAMPDIFF(MICROSECOND, CAST(? AS DATETIME(6)), at)"
	origin := start.UTC().Format("2006-01-02 15:04:05.000000")
	for p := range periods {
		from := time.Duration(p) * jobPeriod
		n := s.Count(t, "SELECT COUNT(*) FROM ran WHERE "+offset+" BETWEEN ? AND ?", origin, from.Microseconds(), (from+jobPeriod).Microseconds()-1)
		if n != 1 {
			t.Errorf("period %d: the job ran %d times", p, n)
		}
	}
	if n := s.Count(t, "SELECT COUNT(*) FROM ran"); n != periods {
		t.Errorf("%d runs in %d periods", n, periods)
	}
	if n := s.Count(t, "SELECT COUNT(*) FROM (SELECT fence, LAG(fence) OVER (ORDER BY id) AS fence_before FROM ran) r WHERE fence <= fence_before"); n != 0 {
		t.Errorf("%d runs with a fence not above the last", n)
	}
}

func runJob() int {
	l, _, err := openNode(tier.WithTTL(time.Second))
	if err != nil {
		return wrong(err)
	}
	db, err := sql.Open("mysql", setting("dsn"))
	if err != nil {
		return wrong(err)
	}
	if err := db.Ping(); err != nil {
		return wrong(err)
	}
	say("ready")
	var nanos int64
	if _, err := fmt.Scanln(&nanos); err != nil {
		return wrong(fmt.Errorf("the start: %w", err))
	}
	periods, _ := strconv.Atoi(setting("periods"))
	node, _ := strconv.Atoi(setting("node"))
	for p := range periods {
		due := time.Unix(0, nanos).Add(time.Duration(p)*jobPeriod + time.Duration(node)*jobSkew/4)
		time.Sleep(time.Until(due))
		tryJob(l, db, node, due)
	}
	if err := errors.Join(closeNode(l), db.Close()); err != nil {
		return wrong(err)
	}
	return 0
}

// tryJob runs the job unless another has.
func tryJob(l *tier.Locker, db *sql.DB, node int, due time.Time) {
	if time.Since(due) > jobLate {
		say("late")
		return
	}
	lease, err := l.TryAcquire(context.Background(), "nightly", tier.WithMinHold(jobHold))
	for errors.Is(err, tier.ErrUnavailable) && time.Since(due) < jobLate { // a starved machine, not a held key
		time.Sleep(20 * time.Millisecond)
		lease, err = l.TryAcquire(context.Background(), "nightly", tier.WithMinHold(jobHold))
	}
	switch {
	case errors.Is(err, tier.ErrHeld):
		say("held")
		return
	case errors.Is(err, tier.ErrUnavailable):
		say("unavailable")
		return
	case err != nil:
		wrong(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := db.ExecContext(ctx, "INSERT INTO ran (node, fence, at) VALUES (?, ?, UTC_TIMESTAMP(6))", node, lease.Fence()); err != nil {
		wrong(err)
	}
	say("ran")
	if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) { // it goes on behind
		wrong(err)
	}
}
