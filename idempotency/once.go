// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// Write does the work of a request inside tx and returns its answer. It touches
// nothing but tx: the whole of it is repeated when the transaction is rolled back
// by the server. It must not end tx, nor have the server end it, as DDL does.
type Write func(ctx context.Context, tx *sql.Tx) (answer []byte, err error)

// Once runs write, proves the lease's tenure and stores the answer, all in one
// transaction; or returns the answer that an earlier call with the same key has
// stored. So the write happens once, whoever calls it, however often, and
// whatever process or server dies on the way, until the answer's retention has
// passed. The transaction is at READ COMMITTED, in this order:
//
//	look for the key, insert it, write, store the answer, confirm the tenure, COMMIT
//
// lease may be nil: the write then happens once all the same, but perhaps beside
// other writes to the same rows. A replay needs no live tenure.
//
// An error of write rolls everything back and is returned as it is, unless it is
// [Final]. When the server rolled the transaction back, or the connection was
// lost before COMMIT, all of it is repeated, three times at most. When the reply
// to COMMIT was lost, Once asks the server what came of it.
//
// Once returns within ctx, which bounds write too. Errors, each in an [*Error]:
// those of the request (see [Request]), [ErrMismatch], [ErrInProgress], [ErrFinal],
// [ErrStaleFence], [ErrUnfenced], [ErrWrongKey], [ErrWrongDB], [ErrRetryTx],
// [ErrResultTooLarge], [ErrResultUndecodable], [ErrSpent], [ErrStoreDown],
// [ErrSchema], [ErrTxDone], the context's. After [ErrInProgress] and the context's
// error the outcome may be unknown: ask again with the same key.
func (g *Guard) Once(ctx context.Context, lease *tier.Lease, r Request, write Write) (Result, error) {
	w, err := g.newWork("once", lease, r)
	var result Result
	if err == nil {
		result, err = w.once(ctx, write)
	}
	g.metrics.count(result, err)
	return result, err
}

// once looks and writes until there is an answer. That another attempt came first
// is no failure; that the server did not keep the transaction is, three times.
func (w *work) once(ctx context.Context, write Write) (Result, error) {
	until := time.Now().Add(w.request.wait())
	for repeated := 0; ; {
		result, err := w.try(ctx, until, write)
		switch {
		case errors.Is(err, errBusy) && time.Now().After(until):
			return result, w.inProgress(0)
		case errors.Is(err, errTaken), errors.Is(err, errBusy):
			continue
		case retryable(err) && repeated < repeats:
			repeated++
			if sleep(ctx, backOff(repeated)) == nil {
				continue
			}
		}
		return result, err
	}
}

func (w *work) try(ctx context.Context, until time.Time, write Write) (Result, error) {
	seen, err := w.lookWaiting(ctx, until)
	if err != nil {
		return Result{}, w.error(err, 0)
	}
	if result, answered, err := w.answer(seen); answered {
		return result, err
	}
	if seen != nil && !seen.reusable() {
		return Result{}, w.notOurs(seen)
	}
	t := &transaction{work: w, attempt: newAttempt()}
	result, err := t.run(ctx, seen != nil, stateCompleted, write)
	if no, ok := errors.AsType[*final](err); ok {
		result, err = t.run(ctx, seen != nil, stateFailed, func(context.Context, *sql.Tx) ([]byte, error) { return no.body, nil })
		if err == nil {
			err = w.error(no, 0)
		}
	}
	return result, err
}

// notOurs says why a row that is started stays as it is: Once leaves none behind.
func (w *work) notOurs(r *row) error {
	switch {
	case r.left > 0:
		return w.inProgress(r.left)
	case r.alone():
		return w.error(fmt.Errorf("%w: an earlier write under this key has ended it itself, and nobody knows how much of it was done: find out, then delete the row", ErrTxDone), 0)
	}
	return w.error(fmt.Errorf("%w: it was begun by Reserve, and has to be ended by it", ErrMismatch), 0)
}

// run does all of it. Whatever happens, a panic too, the transaction is over when
// it returns, and the tenures are free to end.
func (t *transaction) run(ctx context.Context, expired bool, as state, write Write) (Result, error) {
	tx, err := t.begin(ctx)
	if err != nil {
		return Result{}, err
	}
	defer t.end(ctx)
	if err := t.enter(ctx, tx, t.attempt, expired, 0); err != nil {
		return Result{}, err
	}
	if err := t.claim(ctx, tx); err != nil {
		return Result{}, err
	}
	answer, err := write(ctx, tx)
	if err != nil {
		return Result{}, t.writeError(err)
	}
	if err := t.store(ctx, tx, as, answer, t.attempt); err != nil {
		return Result{}, err
	}
	if err := t.confirm(ctx); err != nil {
		return Result{}, err
	}
	if err := t.commit(ctx, (*row).ended); err != nil {
		return Result{}, err
	}
	return Result{Body: answer}, nil
}
