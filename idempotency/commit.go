// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"time"
)

// transaction is one that the guard itself begins and ends. The tenures are
// confirmed last, and pinned until it is over.
type transaction struct {
	*work
	attempt   []byte
	tx        *sql.Tx
	committed bool
	unknown   bool // whether it is
	unpins    []func(known bool)
}

func (t *transaction) begin(ctx context.Context) (*sql.Tx, error) {
	tx, err := t.guard.begin(ctx)
	t.tx = tx
	return tx, t.error(err, 0)
}

// end is for every way out, a panic too.
func (t *transaction) end(ctx context.Context) {
	if !t.committed {
		rollback(ctx, t.tx)
	}
	for _, unpin := range t.unpins {
		unpin(!t.unknown)
	}
	t.unpins = nil
}

// confirm proves the tenures and keeps them until the end.
func (t *transaction) confirm(ctx context.Context) error {
	for _, lease := range t.leases {
		proved, unpin, err := lease.Pin()
		if err != nil {
			return t.error(stale(err), 0)
		}
		t.unpins = append(t.unpins, unpin)
		if t.guard.options.highWater {
			continue // claimed, and locked since
		}
		if err := writeRow(ctx, t.tx, lease, proved, t.op, confirm); err != nil {
			return t.error(err, 0)
		}
	}
	return nil
}

// commit makes an unknown outcome known, if time allows: landed tells of a row of
// this attempt whether it is as the transaction leaves it.
func (t *transaction) commit(ctx context.Context, landed func(*row) bool) error {
	limited, cancel := context.WithTimeout(ctx, commitLimit)
	defer cancel()
	_, err := t.tx.ExecContext(limited, "COMMIT") // unlike tx.Commit it ends with its context
	if err == nil {
		t.committed = true
		go func() { _ = t.tx.Rollback() }() // gives the connection back, which takes a round trip
		return nil
	}
	if server := serverError(err); server != nil && rolledBackByServer(server) {
		return t.error(fmt.Errorf("%w: %w", ErrRetryTx, err), 0)
	}
	rollback(ctx, t.tx)
	return t.reconcile(ctx, err, landed)
}

// reconcile asks what came of a COMMIT without an answer. While the transaction
// may still be committed its row is locked, so that a row that is not there, or not
// as it would be, proves that it never will be.
func (t *transaction) reconcile(ctx context.Context, lost error, landed func(*row) bool) error {
	ctx, cancel := context.WithTimeout(ctx, commitLimit)
	defer cancel()
	for {
		r, err := t.look(ctx)
		switch {
		case err != nil: // the transaction has the row, or nobody answers
		case r != nil && bytes.Equal(r.attempt, t.attempt) && landed(r):
			return nil
		default:
			return t.error(fmt.Errorf("%w: %w", ErrRetryTx, lost), 0)
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			t.unknown = true
			return t.error(fmt.Errorf("%w: the reply to COMMIT was lost, and the server does not say what came of it: %w", ErrInProgress, lost), askAgain)
		}
	}
}
