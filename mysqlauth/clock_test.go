// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A forward step is counted when nothing else explains what was seen, and a
// slow reply or a step back never is.
func TestWatchClock_countsProvenStepsOnly(t *testing.T) {
	sent := time.Now()
	for name, test := range map[string]struct {
		server, local time.Duration // between the two replies
		ttl           time.Duration
		counts        bool
	}{
		"no step":                       {time.Second, time.Second, 10 * time.Second, false},
		"half the margin":               {1500 * time.Millisecond, time.Second, 10 * time.Second, false},
		"more than half the margin":     {1501 * time.Millisecond, time.Second, 10 * time.Second, true},
		"short TTL: margin 50 ms":       {1026 * time.Millisecond, time.Second, 500 * time.Millisecond, true},
		"short TTL: within the margin":  {1024 * time.Millisecond, time.Second, 500 * time.Millisecond, false},
		"back":                          {-time.Hour, time.Second, 10 * time.Second, false},
		"slow reply hides what it must": {3 * time.Second, 4 * time.Second, 10 * time.Second, false},
	} {
		core, logs := observer.New(zap.WarnLevel)
		a := &Authority{log: zap.New(core)}
		before := clock{micros: 1e15, sent: sent}
		after := clock{micros: 1e15 + test.server.Microseconds()}
		a.watchClock(before, after, sent.Add(test.local), test.ttl)
		if got := a.Stats().ClockSteps == 1 && logs.Len() == 1; got != test.counts {
			t.Errorf("%s: counted %v, want %v", name, got, test.counts)
		}
	}
}

func TestPause_endsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if pause(ctx, time.Hour) == nil {
		t.Error("the pause ended by itself")
	}
	if err := pause(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
}
