// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// Call is one exchange with a tier's server, whatever it carried: a statement
// for a hundred keys is one Call. It is what the health of a tier is judged by.
type Call struct {
	// Op is what was asked: "claim", "look", "renew", "release", "mark", ... or
	// "ping" for the exchanges of a Ping, and "connect" for a connection that
	// could not be had.
	Op string
	// Took is how long it took.
	Took time.Duration
	// Err is nil when the server answered, also that somebody else has the key;
	// classified otherwise.
	Err error
}

// Observer is told of every [Call], from any goroutine. It must not block.
type Observer func(Call)
