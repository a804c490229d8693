// SPDX-License-Identifier: Apache-2.0

// Package idempotency guards writes. A lock makes double work rare; what makes it
// impossible is the write itself, which proves its tenure and records its
// idempotency key in the transaction it is part of.
//
// It promises (the numbers are those of docs/guarantees.md):
//
//   - P3: a guarded write by a holder that lost its lease is rejected, however late
//     it wakes up, also before its successor has written anything.
//   - P11: a guarded write happens once per idempotency key within its retention,
//     and a replay returns the first answer, byte by byte.
//   - An outcome that is not known is said to be unknown, and asking again with the
//     same key is always safe.
//
// It does not promise that an effect outside the database happens once: there it
// hands on a key by which the other side can tell ([Guard.Reserve]).
//
// # Which one
//
//   - [Guard.Once] for a write to the business database: it begins, repeats and
//     commits the transaction itself. Without a lock, too.
//   - [Guard.OnceTx] for the same inside a transaction of the caller's own.
//   - [Guard.Reserve] for effects outside the database, in steps.
//   - [ConfirmTx] for a write that has to be fenced and may be repeated, and
//     [ReleaseTx] to free the key in the same COMMIT.
//   - [Guard.Claim] and [Guard.Admit] where the business database is not the lock's.
//   - [Versioned] for rows with a version column, without any lock.
//
// # Two traps
//
// A lock service that numbers its grants, and a store that refuses numbers below the
// highest it has seen, accept a zombie's write as long as its successor has not
// written. So the lease row itself is written in the business transaction, last
// before COMMIT; or, in another database, a new tenure raises the number before its
// first read.
//
// And a fence orders writes, but does not make them happen once: a holder that
// crashed after its COMMIT, before anybody was told, is followed by one that does the
// work again, with a better fence. Only a record that is committed with the work stops
// that.
package idempotency
