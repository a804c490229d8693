// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestMatrix runs every arm under every fault, ten times of ten seconds each:
// the controls have to break every time and tierlock never. It takes 20 minutes
// and runs with TIERLOCK_SOAK=1, TIERLOCK_SOAK_RUNS times instead of ten, and
// TIERLOCK_SOAK_ENGINE=mysql on MySQL. Each run is a line of the log.
func TestMatrix(t *testing.T) {
	if os.Getenv("TIERLOCK_SOAK") == "" {
		t.Skip("TIERLOCK_SOAK is not set")
	}
	runs := 10
	if n, err := strconv.Atoi(os.Getenv("TIERLOCK_SOAK_RUNS")); err == nil {
		runs = n
	}
	engine := "mariadb"
	if given := os.Getenv("TIERLOCK_SOAK_ENGINE"); given != "" {
		engine = given
	}
	rows := []struct {
		args  string
		code  int
		check func(result) bool
	}{
		{"-lock none", exitBroke, func(r result) bool { return r.Oversold > 0 }},
		{"-lock redis", exitHeld, clean},
		{"-lock redis -fault redis-flush", exitBroke, func(r result) bool { return r.Oversold > 0 }},
		{"-lock redis -fault holder-pause", exitBroke, func(r result) bool { return r.Oversold > 0 }},
		{"-lock tierlock -guard=false -fault holder-pause", exitBroke, func(r result) bool { return r.Oversold > 0 }},
		{"-lock tierlock", exitHeld, clean},
		{"-lock tierlock -fault redis-flush", exitHeld, clean},
		{"-lock tierlock -fault redis-kill", exitHeld, func(r result) bool { return clean(r) && r.Levels.Authority > 0 }},
		{"-lock tierlock -fault mysql-pause", exitHeld, rungs},
		{"-lock tierlock -fault mysql-kill", exitHeld, rungs},
		{"-lock tierlock -fault all -duration 30s", exitHeld, clean},
		{"-scenario payment -lock none", exitBroke, func(r result) bool { return r.DoubleCharged > 0 && r.Money != 0 }},
		{"-scenario payment -lock redis", exitBroke, func(r result) bool { return r.DoubleCharged > 0 }},
		{"-scenario payment -guard=false -fault holder-pause", exitBroke, func(r result) bool { return r.DoubleCharged > 0 || r.Money != 0 }},
		{"-scenario payment -guard=false -workers 32 -duration 20s -fault all", exitBroke, func(r result) bool { return r.DoubleCharged > 0 || r.Money != 0 }},
		{"-scenario payment -workers 32 -duration 20s -fault all", exitHeld, replayed},
		{"-scenario payment -fault holder-pause", exitHeld, func(r result) bool { return replayed(r) && r.StaleRejected > 0 }},
		{"-scenario all -fault all -duration 30s", exitHeld, replayed},
		{"-lock tierlock -fault holder-pause", exitHeld, func(r result) bool { return clean(r) && r.StaleRejected > 0 }},
	}
	for _, row := range rows {
		t.Run(row.args, func(t *testing.T) {
			for i := range runs {
				args := append(strings.Fields(row.args), "-engine", engine, "-seed", strconv.Itoa(i+1))
				code, r, said := play(t.Context(), t, args...)
				line := t.Logf
				if code != row.code || !row.check(r) {
					line = t.Errorf
				}
				line("%s run %d: exit %d, %d faults, %d attempts, %d writes, %d oversold, %d overlaps, %d refused, %d lost, levels %+v, p50 %v ms, p99 %v ms",
					row.args, i+1, code, r.Faults, r.Attempts, r.Writes, r.Oversold, r.Overlaps, r.StaleRejected, r.Lost, r.Levels, r.P50, r.P99)
				if t.Failed() {
					t.Log(said)
				}
			}
		})
	}
}

// replayed says that requests were repeated, and nobody was charged twice for it.
func replayed(r result) bool {
	return clean(r) && r.DoubleCharged == 0 && r.Money == 0 && r.Replayed > 0
}

func clean(r result) bool { return r.OK && r.Oversold == 0 && r.Overlaps == 0 && r.Error == "" }

// rungs were seen, each of them.
func rungs(r result) bool { return clean(r) && r.Levels.Local > 0 && r.Unavailable > 0 }
