// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrHeld means that another holder, or another caller of this process, has
	// the key. Nothing is wrong.
	ErrHeld = errors.New("tier: held by another")
	// ErrLost means that the lease is not ours any more, or may not be by the
	// time anyone could tell. A guarded write of its tenure is rejected.
	ErrLost = errors.New("tier: lease lost")
	// ErrMaxHold means that the lease was held longer than [WithMaxHold] allows.
	ErrMaxHold = errors.New("tier: held longer than allowed")
	// ErrUnavailable means that the key's policy found no tier to grant it.
	ErrUnavailable = errors.New("tier: unavailable")
	// ErrClosed means that the locker was closed.
	ErrClosed = errors.New("tier: locker closed")
	// ErrKey means that the key is empty or longer than 255 bytes.
	ErrKey = errors.New("tier: invalid key")
	// ErrOption means that an option has a value that cannot work.
	ErrOption = errors.New("tier: invalid option")
)

// Error says what happened to which key. Its cause is reached by errors.Is and
// errors.As: one of the errors above, a driver's classified error, and, when a
// wait was cancelled, the context's error.
type Error struct {
	Op    string // what was asked for, or "hold" when a lease ended by itself
	Key   string // without its namespace; empty when no key is concerned
	Level Level  // of the lease, LevelNone before there is one
	// RetryAfter is how long the obstacle is known to last, 0 when unknown.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	switch {
	case len(e.Key) > maxKey: // refused for it: it may be of any size
		fmt.Fprintf(&b, " %.64q...", e.Key)
	case e.Key != "":
		fmt.Fprintf(&b, " %q", e.Key)
	}
	if e.Level != LevelNone {
		fmt.Fprintf(&b, " (%s)", e.Level)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, "; retry after %v", e.RetryAfter.Round(time.Millisecond))
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

func optionError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrOption}, args...)...)
}
