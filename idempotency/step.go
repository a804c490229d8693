// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tierlock/tierlock/internal/sqltx"
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
func (w *work) enter(ctx context.Context, tx Tx, attempt []byte, expired bool, attemptTime time.Duration) error {
	var until any
	if attemptTime > 0 {
		until = micros(attemptTime)
	}
	terms := []any{w.request.Fingerprint, attempt, newAttempt(), until, w.request.Codec, micros(w.request.ttl(w.guard))}
	if expired {
		n, err := w.exec(ctx, tx, w.guard.tables.renewExpired(), append(terms, w.key()...)...)
		if err == nil && n != 1 {
			err = errTaken
		}
		return err
	}
	return w.briefly(ctx, tx, func() error {
		_, err := tx.ExecContext(ctx, w.guard.tables.insert(), append(w.key(), terms...)...)
		if isAnswer(err, 1062) {
			return errTaken
		}
		return err
	})
}

// briefly runs a statement that may meet a locked row, for which the session waits
// a second at most. A limit of the client's would leave the statement waiting on the
// server, with all that its transaction has locked.
//
// The session waits as before afterwards, or is gone; only a caller's transaction
// that its own context ends between two of these statements keeps the limit.
func (w *work) briefly(ctx context.Context, tx Tx, statement func() error) error {
	if _, err := w.exec(ctx, tx, sqltx.WaitBriefly); err != nil {
		return err
	}
	err := statement()
	restoring, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.RollbackLimit)
	defer cancel()
	_, unset := tx.ExecContext(restoring, sqltx.WaitAsBefore)
	switch {
	case isAnswer(err, 1205):
		return errBusy
	case err == nil, errors.Is(err, errTaken):
		if unset != nil {
			return w.classified(ctx, unset)
		}
		return err
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

// execPrepared is exec for a statement that carries an answer. With a long one it is
// prepared, where tx can do that: a driver that puts arguments into the text of a
// statement doubles every byte that has to be escaped, and an answer that fits would
// not.
func (w *work) execPrepared(ctx context.Context, tx Tx, statement string, args ...any) (int64, error) {
	preparer, ok := tx.(interface {
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	})
	if !ok || !slices.ContainsFunc(args, isLong) {
		return w.exec(ctx, tx, statement, args...)
	}
	prepared, err := preparer.PrepareContext(ctx, statement)
	if err != nil {
		return 0, w.classified(ctx, err)
	}
	defer func() { _ = prepared.Close() }()
	result, err := prepared.ExecContext(ctx, args...)
	if err != nil {
		return 0, w.classified(ctx, err)
	}
	n, err := result.RowsAffected()
	return n, w.classified(ctx, err)
}

func isLong(arg any) bool {
	b, ok := arg.([]byte)
	return ok && len(b) > packetMargin/4
}

func (w *work) classified(ctx context.Context, err error) error {
	return w.error(classify(ctx, err, ErrSchema), 0)
}

// store keeps the answer. That the attempt is not the row's any more means that
// another has taken over.
func (w *work) store(ctx context.Context, tx Tx, as state, answer, attempt []byte) error {
	if err := w.fits(answer); err != nil {
		return err
	}
	if answer == nil {
		answer = []byte{} // an answer, if an empty one
	}
	args := append([]any{as, answer, micros(w.request.ttl(w.guard))}, w.key()...)
	n, err := w.execPrepared(ctx, tx, w.guard.tables.finish(), append(args, attempt)...)
	if err == nil && n != 1 {
		err = w.error(ErrSuperseded, 0)
	}
	return err
}

func (w *work) fits(answer []byte) error {
	if n := len(answer); n > w.guard.options.maxResult {
		return w.error(fmt.Errorf("%w: %d bytes, the guard stores %d; the transaction is rolled back", ErrResultTooLarge, n, w.guard.options.maxResult), 0)
	}
	return nil
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

// writeError is what a user's function returned, unless it means that the
// transaction is gone.
func (w *work) writeError(err error) error {
	if rolledBackByServer(err) {
		return w.error(fmt.Errorf("%w: %w", ErrRetryTx, err), 0)
	}
	return err
}
