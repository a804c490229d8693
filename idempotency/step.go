// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// repeats is how often a transaction that the server rolled back is begun
	// again.
	repeats = 3
	// commitLimit bounds a COMMIT, whose outcome is unknown after it, and then
	// the questions what came of it.
	commitLimit = 5 * time.Second
)

func retryable(err error) bool { return errors.Is(err, ErrRetryTx) || errors.Is(err, ErrStoreDown) }

// backOff gives a server that has just restarted, or whoever was in the way, some
// time.
func backOff(repeated int) time.Duration {
	longest := 10 * time.Millisecond << (2 * repeated)
	return longest/2 + rand.N(longest/2)
}

// enter makes the request's row, or takes that of an expired one. attemptTime is
// 0 for one that nobody but its transaction ever sees started.
func (w *work) enter(ctx context.Context, tx *sql.Tx, attempt []byte, expired bool, attemptTime time.Duration) error {
	var until any
	if attemptTime > 0 {
		until = micros(attemptTime)
	}
	terms := []any{w.request.Fingerprint, attempt, until, w.request.Codec, micros(w.request.ttl(w.guard))}
	if expired {
		n, err := w.exec(ctx, tx, w.guard.tables.renewExpired(), append(terms, w.key()...)...)
		if err == nil && n != 1 {
			err = errTaken
		}
		return err
	}
	_, err := tx.ExecContext(ctx, w.guard.tables.insert(), append(w.key(), terms...)...)
	if isAnswer(err, 1062) || isAnswer(err, 1205) {
		rollback(ctx, tx)
		return errTaken
	}
	return w.classified(ctx, err)
}

// exec runs a statement of ours.
func (w *work) exec(ctx context.Context, tx Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, w.classified(ctx, err)
	}
	n, err := result.RowsAffected()
	return n, w.classified(ctx, err)
}

func (w *work) classified(ctx context.Context, err error) error {
	return w.error(classify(ctx, err, ErrSchema), 0)
}

// store keeps the answer. That the attempt is not the row's any more means that
// another has taken over.
func (w *work) store(ctx context.Context, tx Tx, as state, answer, attempt []byte) error {
	if n := len(answer); n > w.guard.options.maxResult {
		return w.error(fmt.Errorf("%w: %d bytes, the guard stores %d; nothing was written", ErrResultTooLarge, n, w.guard.options.maxResult), 0)
	}
	if answer == nil {
		answer = []byte{} // an answer, if an empty one
	}
	args := append([]any{as, answer, micros(w.request.ttl(w.guard))}, w.key()...)
	n, err := w.exec(ctx, tx, w.guard.tables.finish(), append(args, attempt)...)
	if err == nil && n != 1 {
		err = w.error(ErrSuperseded, 0)
	}
	return err
}

// claim raises the highest fences, where those are what proves a tenure: before
// the write's first read.
func (w *work) claim(ctx context.Context, tx Tx) error {
	if !w.guard.options.highWater {
		return nil
	}
	for _, lease := range w.leases {
		if err := w.guard.admit(ctx, tx, lease, w.op); err != nil {
			return w.error(err, 0)
		}
	}
	return nil
}

// confirm proves the tenures and keeps them until unpin.
func (t *transaction) confirm(ctx context.Context, tx Tx) error {
	for _, lease := range t.leases {
		proved, unpin, err := lease.Pin()
		if err != nil {
			return t.error(stale(err), 0)
		}
		t.unpins = append(t.unpins, unpin)
		if t.guard.options.highWater {
			continue // claimed, and locked since
		}
		if err := writeRow(ctx, tx, lease, proved, t.op, confirm); err != nil {
			return t.error(err, 0)
		}
	}
	return nil
}

func (t *transaction) unpin() {
	for _, unpin := range t.unpins {
		unpin()
	}
	t.unpins = nil
}

// isOurs reports that the row holds this attempt's answer.
func (t *transaction) isOurs(r *row) bool {
	return r.state != stateStarted && bytes.Equal(r.attempt, t.attempt)
}
