// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

// Two holds of a key that overlap fail the run, whoever the lock is.
func TestEfficiency(t *testing.T) {
	w := window{From: 0, Until: 1000}
	got, err := efficiency([]span{{Key: 1, From: 500, Until: 750}, {Key: 1, From: 0, Until: 500}, {Key: 2, From: 100, Until: 350}}, w, 2)
	if err != nil || got != 0.5 {
		t.Errorf("efficiency %v, %v; want 0.5", got, err)
	}
	if _, err := efficiency([]span{{Key: 1, From: 0, Until: 501}, {Key: 1, From: 500, Until: 750}}, w, 1); !errors.Is(err, errBroken) {
		t.Errorf("overlapping holds: %v", err)
	}
	// What was held before and after the window does not count.
	if got, err := efficiency([]span{{Key: 1, From: -500, Until: 250}, {Key: 1, From: 900, Until: 5000}}, w, 1); err != nil || math.Abs(got-0.35) > 1e-9 {
		t.Errorf("efficiency %v, %v; want 0.35", got, err)
	}
}

// brokenLock grants whatever it is asked for.
type brokenLock struct{}

func (brokenLock) Acquire(context.Context, int, string) (held, error) { return brokenLock{}, nil }
func (brokenLock) Try(context.Context, int, string) (held, error)     { return brokenLock{}, nil }
func (brokenLock) Release(context.Context) error                      { return nil }
func (brokenLock) Close() error                                       { return nil }

// A lock that excludes nobody is found out by the same loop that measures the
// others.
func TestRun_brokenLock(t *testing.T) {
	spans := t.TempDir() + "/spans"
	tk := task{Loop: "hot", Lock: "none", Workers: 4, Hold: 5 * time.Millisecond, Spans: spans}
	makers = append(makers, maker{name: "none", make: func(task) (contestant, error) { return brokenLock{}, nil }})
	t.Cleanup(func() { makers = makers[:len(makers)-1] })
	w := window{From: now(), Until: now().add(200 * time.Millisecond)}
	if _, err := runHot(t.Context(), tk, func(string) window { return w }); err != nil {
		t.Fatal(err)
	}
	all, err := readSpans(spans)
	if err != nil || len(all) < 8 {
		t.Fatalf("%d spans, %v", len(all), err)
	}
	if _, err := efficiency(all, w, 1); !errors.Is(err, errBroken) {
		t.Errorf("nobody noticed: %v", err)
	}
}

func TestMedianAndQuantile(t *testing.T) {
	m := median([]result{{PerS: 3, P50: 1, Errors: 1}, {PerS: 1, P50: 2}, {PerS: 2, P50: 9, Errors: 2}})
	if m.PerS != 2 || m.P50 != 2 || m.Errors != 3 {
		t.Errorf("median %+v", m)
	}
	if p := quantile(map[int64]int64{1000: 98, 5000: 1, 9000: 1}, 0.99); p != 5 {
		t.Errorf("p99 %v, want 5", p)
	}
}

func TestParse_refuses(t *testing.T) {
	for _, args := range []string{"-case nope", "-lock nope", "-engine oracle", "-rounds 0", "-duration 1ms", "extra"} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%s was accepted", args)
		}
	}
}

// The shortest whole run: processes, servers, JSON lines and ratios.
func TestBench_hot(t *testing.T) {
	var out bytes.Buffer
	b := &bench{
		config: config{cases: []string{"hot"}, locks: []string{"tierlock", "getlock"}, engine: stack.MariaDB, duration: 200 * time.Millisecond, rounds: 1, json: true},
		out:    &out, progress: io.Discard,
	}
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	var first result
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first.Case != "hot" || first.Lock != "tierlock" || first.Workers != 64 || first.PerS < 1 || first.Errors != 0 {
		t.Errorf("%+v", first)
	}
	var last struct{ Ratios map[string]float64 }
	if err := json.Unmarshal([]byte(lines[2]), &last); err != nil || last.Ratios["hot/64/tenures_per_s"] < 1 {
		t.Errorf("%s: %v", lines[2], err)
	}
}
