// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// obstacle is what keeps a caller waiting: a holder, or a fault of the
// authority, which says more than the refusals before it: a wait that ended
// with a tier silent is not "held".
type obstacle struct {
	left    time.Duration // how long it lasts, as far as anybody knows; 0: unknown
	look    time.Duration // when it is worth a look past it; 0: never
	refusal error         // the last refusal, if there was one
	fault   error         // nil after any answer
}

// err is what the caller is told; nil when nothing is known.
func (o obstacle) err() error {
	if o.fault != nil {
		return unavailable(o.fault)
	}
	return o.refusal
}

// unavailable wraps a tier's error. A limit of the tier's own that ran out is
// no end of the caller's context, and must not look like one.
func unavailable(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = tierError{err}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// tierError is found by errors.As, and hides what it wraps from errors.Is.
type tierError struct{ error }

func (e tierError) As(target any) bool { return errors.As(e.error, target) }
