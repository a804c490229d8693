// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tierlock/tierlock/breaker"
)

// Ladder is what a policy allows when the authority does not serve, mildest
// first. However it ends, what is not on it is refused: the nil Ladder fails
// closed at the first fault.
type Ladder []Rung

// Default asks again, and then refuses. Local is never a default: whoever can do
// without the authority has to say so.
func Default() Ladder { return Ladder{Retry, FailClosed} }

// DefaultAttempts is how often [Retry] asks again where nothing else is said.
const DefaultAttempts = 2

// LadderError is a ladder that contradicts itself.
type LadderError struct {
	Ladder Ladder
	At     int // the index of the rung that is wrong; 0 for an empty ladder
	Reason string
}

func (e *LadderError) Error() string {
	return fmt.Sprintf("fallback: ladder %v: %s", e.Ladder, e.Reason)
}

// Validate returns a *[LadderError] for the first rung that cannot be where it
// is.
func (l Ladder) Validate() error {
	if len(l) == 0 {
		return &LadderError{Ladder: l, Reason: "is empty: fail_closed alone refuses at once"}
	}
	for i, r := range l {
		var reason string
		switch before := l[:i]; {
		case !r.known():
			reason = fmt.Sprintf("%v is unknown: want retry, local or fail_closed", r)
		case slices.Contains(before, r):
			reason = fmt.Sprintf("%v stands there twice", r)
		case slices.Contains(before, FailClosed):
			reason = fmt.Sprintf("%v after fail_closed is never reached", r)
		case r == Retry && slices.Contains(before, Local):
			reason = "retry after local is never reached: what needs no authority does not ask it again"
		default:
			continue
		}
		return &LadderError{Ladder: l, At: i, Reason: reason}
	}
	return nil
}

// String returns the ladder as it stands in a config file.
func (l Ladder) String() string {
	rungs := make([]string, len(l))
	for i, r := range l {
		rungs[i] = r.String()
	}
	return "[" + strings.Join(rungs, ", ") + "]"
}

// Situation is what a call knows when it asks its ladder what to do.
type Situation struct {
	// Health is the authority's.
	Health breaker.State
	// Faulted says that this call has just met a fault of the authority, and
	// Retryable that asking again may help: not where a person is needed.
	Faulted, Retryable bool
	// Retries is how often this call has asked again already, and Attempts how
	// often it may; 0 means [DefaultAttempts].
	Retries, Attempts int
	// LocalLeft is how much of its time on the rung Local the policy has left in
	// this outage.
	LocalLeft time.Duration
}

// Next returns the rung a call is on: the first line that fits.
func (l Ladder) Next(s Situation) Rung {
	switch {
	case s.Health == breaker.Partial && l.has(Local) && s.LocalLeft > 0:
		return Local
	case s.Health != breaker.Closed:
		return FailClosed
	case !s.Faulted:
		return None
	case s.Retryable && l.has(Retry) && s.Retries < s.attempts():
		return Retry
	default:
		return FailClosed
	}
}

func (l Ladder) has(r Rung) bool { return slices.Contains(l, r) }

func (s Situation) attempts() int {
	if s.Attempts == 0 {
		return DefaultAttempts
	}
	return s.Attempts
}
