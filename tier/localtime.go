// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"sync"
	"time"
)

// localTime is how long a policy may stay on the rung local in one outage,
// counted from the first local lease in it.
type localTime struct {
	mu     sync.Mutex
	outage time.Time // since when; zero before the first
	end    time.Time
}

// left returns how much of it is left.
func (w *localTime) left(outage, now time.Time, whole time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outage.Equal(outage) {
		return w.end.Sub(now)
	}
	return whole
}

// begin returns when it ends, and whether it began just now.
func (w *localTime) begin(outage, now time.Time, whole time.Duration) (end time.Time, first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.outage.Equal(outage) {
		w.outage, w.end, first = outage, now.Add(whole), true
	}
	return w.end, first
}
