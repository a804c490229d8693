// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock/tier"
)

// OnceTx is [Guard.Once] inside the caller's own transaction, of the guard's
// database and at whatever isolation it has. The caller has begun it, calls OnceTx
// last, and commits it at once: the lease's row is locked from then on.
//
// Nothing is repeated, and no failure is stored, [Final] or not. After an error
// that came with I/O, one of write included, tx was rolled back, whatever else the
// caller had done in it: a request that was entered and not answered would stand in
// its own way. That an answer is stored is known only when COMMIT has answered; if
// it has not, ask again with the same key.
//
// Errors: those of Once, [ErrNilTx], [ErrNoTx].
func (g *Guard) OnceTx(ctx context.Context, tx Tx, lease *tier.Lease, r Request, write func(ctx context.Context) (answer []byte, err error)) (Result, error) {
	w, err := g.newWork("once", lease, r)
	var result Result
	if err == nil {
		err = w.error(usable(tx), 0)
	}
	if err == nil {
		result, err = w.onceTx(ctx, tx, write)
	}
	g.metrics.count(result, err)
	return result, err
}

func (w *work) onceTx(ctx context.Context, tx Tx, write func(context.Context) ([]byte, error)) (result Result, err error) {
	if err := inTransaction(ctx, tx, w.op, w.request.Key); err != nil {
		return Result{}, w.error(err, 0)
	}
	done := false
	defer func() {
		if !done { // a panic too
			rollback(ctx, tx)
		}
	}()
	attempt := newAttempt()
	err = w.enter(ctx, tx, attempt, false, 0)
	if errors.Is(err, errTaken) {
		seen, err := w.readAgain(ctx, tx)
		if err != nil {
			return Result{}, err
		}
		if result, answered, err := w.answer(seen); answered {
			done = err == nil
			return result, err
		}
		switch {
		case seen == nil: // it was deleted since
			return Result{}, w.error(fmt.Errorf("%w: the row that was in the way is gone", ErrRetryTx), 0)
		case !seen.reusable():
			return Result{}, w.notOurs(seen)
		}
		if err := w.enter(ctx, tx, attempt, true, 0); err != nil {
			return Result{}, w.comeAgain(err)
		}
	} else if err != nil {
		return Result{}, w.comeAgain(err)
	}
	if err := w.claim(ctx, tx); err != nil {
		return Result{}, err
	}
	answer, err := write(ctx)
	if err != nil {
		return Result{}, w.writeError(err)
	}
	if err := w.store(ctx, tx, stateCompleted, answer, attempt); err != nil {
		return Result{}, err
	}
	for _, lease := range w.leases {
		if w.guard.options.highWater {
			break // claimed, and locked since
		}
		proved, err := lease.Prove()
		if err != nil {
			return Result{}, w.error(stale(err), 0)
		}
		if err := writeRow(ctx, tx, lease, proved, w.op, confirm); err != nil {
			return Result{}, w.error(err, 0)
		}
	}
	done = true
	return Result{Body: answer}, nil
}

// readAgain reads the row that the insert has met.
func (w *work) readAgain(ctx context.Context, tx Tx) (seen *row, err error) {
	err = w.briefly(ctx, tx, func() error {
		seen, err = w.read(ctx, tx, w.guard.tables.lookAgain())
		return err
	})
	return seen, w.comeAgain(err)
}

// comeAgain is what a caller hears whose transaction is not begun again for him.
func (w *work) comeAgain(err error) error {
	if errors.Is(err, errTaken) || errors.Is(err, errBusy) {
		return w.inProgress(0)
	}
	return err
}
