// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
)

// Class is what a failed call means for the lock. Each driver classifies its
// own errors; nobody above a driver looks at an error of a server.
type Class uint8

const (
	// ClassUnknown is an unknown outcome: the request may have been executed.
	// It is the zero value, since an error nobody classified proves nothing.
	ClassUnknown Class = iota
	// ClassContention is no fault: the key is held, its row is busy, or the
	// server chose this statement as the victim of a deadlock.
	ClassContention
	// ClassCaller is the caller's own doing: its context ended.
	ClassCaller
	// ClassTransient is proof that nothing happened; the next try may succeed.
	ClassTransient
	// ClassDown means that the tier does not serve: refused connections, a
	// server that is loading, read-only or out of memory.
	ClassDown
	// ClassConfig needs a person: a missing table, a missing right, a wrong
	// password. Trying again does not help.
	ClassConfig
)

func (c Class) String() string {
	switch c {
	case ClassContention:
		return "contention"
	case ClassCaller:
		return "caller"
	case ClassTransient:
		return "transient"
	case ClassDown:
		return "down"
	case ClassConfig:
		return "config"
	case ClassUnknown:
		return "unknown outcome"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// Error is a classified failure of a tier. It never holds a password or a key.
type Error struct {
	Tier   string // "redis" or "mysql"
	Op     string // what was attempted: "claim", "mark", ...
	Class  Class
	Advice string // what an operator should do; may be empty
	Err    error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s: %v (%s)", e.Tier, e.Op, e.Err, e.Class)
	if e.Advice != "" {
		s += ": " + e.Advice
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of a driver's error. Errors of a context that
// carry no class are the caller's; everything else unclassified is unknown.
func ClassOf(err error) Class {
	if classified, ok := errors.AsType[*Error](err); ok {
		return classified.Class
	}
	if _, ok := errors.AsType[*Refusal](err); ok {
		return ClassContention
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ClassCaller
	}
	return ClassUnknown
}
