// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"
)

// Mark is what a process puts into the filter for a key. Its token is its own,
// never that of a lease.
type Mark struct {
	Token Token
	TTL   time.Duration
	// Flagged says that the mark itself is all that keeps others away: nobody
	// looks past a flagged mark, and a grant does not overwrite one.
	Flagged bool
}

// MarkState says whose mark stands after a call.
type MarkState struct {
	// Ours reports that the mark with the caller's token stands.
	Ours bool
	// Other and Flagged describe the foreign mark when Ours is false. Other is
	// zero when none stands.
	Other   Token
	Flagged bool
	// Left is how long the foreign mark still stands by the filter's clock; 0
	// when none stands.
	Left time.Duration
}

// Filter keeps the crowd away from the authority. Nothing it answers grants
// anything. All methods are safe for concurrent use; keys carry their
// namespace.
type Filter interface {
	// Mark plants m if no mark stands. A request that the client sent twice
	// recognises its own mark. When it returns an error, a mark that it may
	// have planted is cleared by the driver.
	Mark(ctx context.Context, key string, m Mark) (MarkState, error)

	// Extend sets the time of our own mark. It never plants one: Ours is false
	// when the mark is gone or foreign.
	Extend(ctx context.Context, key string, m Mark) (MarkState, error)

	// Overwrite plants m in place of whatever unflagged mark stands; only the
	// holder of a grant may call it. A foreign flagged mark stays, and is
	// returned. An error leaves open which mark stands.
	Overwrite(ctx context.Context, key string, m Mark) (MarkState, error)

	// Refresh extends our own marks, plants absent ones and leaves foreign
	// ones, for all leases in few round trips. The states are in the order of
	// the requests; on an error they are nil.
	Refresh(ctx context.Context, marks []KeyMark) ([]MarkState, error)

	// Clear deletes the mark if it is still ours. With wake it then tells those
	// who wait for the key, whether or not it deleted anything.
	Clear(ctx context.Context, key string, token Token, wake bool) error

	// Wakeups subscribes to the releases of a key. The channel receives once
	// the server has confirmed the subscription, after each message, and after
	// a reconnection (what was missed is unknown); it holds one value, and is
	// never closed. It may stay silent while the server is down: callers poll
	// besides. stop may be called more than once.
	Wakeups(key string) (c <-chan struct{}, stop func())

	// Observe sets who is told of every exchange with the server from now on.
	Observe(o Observer)

	// Ping asks whether the server answers.
	Ping(ctx context.Context) error

	// Check answers at start-up whether the filter can serve. Findings that do
	// not prevent service are logged by the driver.
	Check(ctx context.Context) error

	// Close waits until ctx ends for the work that abandoned calls left behind,
	// and closes what the driver itself opened.
	Close(ctx context.Context) error
}

// KeyMark is a mark with its key.
type KeyMark struct {
	Key  string
	Mark Mark
}
