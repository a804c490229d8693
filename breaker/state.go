// SPDX-License-Identifier: Apache-2.0

package breaker

import "fmt"

// State is what is known about a tier.
type State uint8

const (
	// Closed means that the tier serves.
	Closed State = iota
	// Partial means that it does not serve now.
	Partial
	// Global means that it has not served for so long, or serves so little, that
	// there is nothing to wait for.
	Global
)

func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Partial:
		return "partial"
	case Global:
		return "global"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// event is what can move a State.
type event uint8

const (
	tripped  event = iota // failures in a row
	lost                  // no success for too long, or too few of them
	answered              // by a probe
)

// moves holds which event leads from which state to which.
var moves = [...][3]State{
	//        tripped  lost    answered
	Closed:  {Partial, Global, Closed},
	Partial: {Partial, Global, Closed},
	Global:  {Global, Global, Closed},
}
