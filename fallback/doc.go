// SPDX-License-Identifier: Apache-2.0

// Package fallback holds what a caller gets when the authority does not serve:
// the rungs of a key's policy as one table, [Ladder.Next], and the lock that the
// rung "local" stands on, [ReentrantMutex].
//
// # What it does not promise
//
// The mutex excludes holders in this process and nobody else: two processes that
// are both on the rung "local" both hold. What is written under it has no fence,
// and a guarded write refuses it unless told otherwise.
//
// A hold ends at its time to live, whether or not its holder has noticed. The
// mutex then lets the next one in; it cannot stop the one before.
//
// # What can be relied on
//
// Every key has an entry of its own for as long as somebody holds it, shared with
// no other key, and none afterwards. Holders are served in the order they came.
// A holder acts on its own hold only: one whose hold has expired cannot free its
// successor's. Every wait ends with its context.
package fallback
