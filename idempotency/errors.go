// SPDX-License-Identifier: Apache-2.0

package idempotency

import "errors"

var (
	// ErrStaleFence means that the tenure is over: another was granted the key,
	// the lease expired or was freed, or its Release has begun. The transaction
	// must be rolled back. Trying again with the same lease is of no use.
	ErrStaleFence = errors.New("idempotency: stale fence")
	// ErrUnfenced means that the lease has no fence, so that nothing can be
	// proved: it was granted without the authority.
	ErrUnfenced = errors.New("idempotency: lease has no fence")
	// ErrWrongDB means that the transaction's database has no lease table, or
	// its user may not write it.
	ErrWrongDB = errors.New("idempotency: wrong database")
	// ErrNoTx means that a pool, or a connection without a transaction, was given
	// where a transaction is needed: each of its statements would be committed by
	// itself, and guard nothing.
	ErrNoTx = errors.New("idempotency: not a transaction")
	// ErrRetryTx means that the transaction is gone: it was rolled back, and
	// the whole of it may be tried again.
	ErrRetryTx = errors.New("idempotency: transaction rolled back, try it again")
)
