// SPDX-License-Identifier: Apache-2.0

package fallback

import "fmt"

// Rung is a step of a [Ladder].
type Rung uint8

const (
	// None is the zero value, and no step of a ladder: nothing is wrong, and the
	// authority is asked.
	None Rung = iota
	// Retry asks the authority again.
	Retry
	// Local does without the authority, and excludes within this process only.
	Local
	// FailClosed refuses without asking anybody.
	FailClosed
)

var names = [...]string{None: "none", Retry: "retry", Local: "local", FailClosed: "fail_closed"}

func (r Rung) String() string {
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("rung %d", uint8(r))
}

// known reports whether r can be a step of a ladder.
func (r Rung) known() bool { return r >= Retry && r <= FailClosed }

// ParseRung returns the rung of that name: retry, local or fail_closed.
func ParseRung(name string) (Rung, error) {
	for r := Retry; r <= FailClosed; r++ {
		if names[r] == name {
			return r, nil
		}
	}
	return None, fmt.Errorf("fallback: unknown rung %q: want retry, local or fail_closed", name)
}

// MarshalText returns the name that ParseRung takes.
func (r Rung) MarshalText() ([]byte, error) {
	if !r.known() {
		return nil, fmt.Errorf("fallback: %v is no step of a ladder", r)
	}
	return []byte(r.String()), nil
}

// UnmarshalText is ParseRung for decoders.
func (r *Rung) UnmarshalText(text []byte) error {
	parsed, err := ParseRung(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}
