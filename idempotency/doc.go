// SPDX-License-Identifier: Apache-2.0

// Package idempotency guards writes: what makes double work impossible is not
// the lock but the write that proves its tenure in its own transaction.
//
// A lock is lost without its holder being asked: a process is stopped for a
// minute, its lease expires, another is granted the key. When it wakes up it
// writes as if nothing had happened. [ConfirmTx] is the end of that write:
//
//	tx, err := db.BeginTx(ctx, nil)
//	// ... read, compute, write ...
//	err = idempotency.ConfirmTx(ctx, tx, lease) // last before COMMIT
//	err = tx.Commit()
package idempotency
