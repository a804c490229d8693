// SPDX-License-Identifier: Apache-2.0

package breaker

import "time"

// window counts calls since a first failure. It is not a gobreaker: that one
// counts healthy traffic too, and a minute of it hides 58 s of an outage.
type window struct {
	since, last         time.Time // the first failure, the latest call
	failures, successes uint64
}

// success counts a call that succeeded, and forgets the window when as many have
// succeeded as have failed.
func (w *window) success(now time.Time) {
	w.successes++
	w.last = now
	if w.successes >= w.failures { // also when there is none yet
		*w = window{}
	}
}

// failure counts a failed call and reports whether the window says that the tier
// is lost. After a silence of a quarter of the span what came before is no part
// of this outage: calls that far apart are not spread over the span.
func (w *window) failure(now time.Time, s *Settings) bool {
	if !w.empty() && now.Sub(w.last) > s.MinSpan/4 {
		*w = window{}
	}
	if w.empty() {
		w.since = now
	}
	w.failures++
	w.last = now
	calls := w.failures + w.successes
	return calls >= uint64(s.MinCalls) &&
		float64(w.failures)/float64(calls) >= s.Ratio &&
		now.Sub(w.since) >= s.MinSpan
}

func (w *window) empty() bool { return w.failures == 0 }
