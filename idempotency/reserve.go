// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/internal/sqltx"
	"github.com/tierlock/tierlock/tier"
)

// Step is one effect outside the database, a payment provider's charge say, and
// what is kept of it. When both have succeeded the request has reached the
// recovery point Name, and no later attempt does them again.
type Step struct {
	// Name is the recovery point: 1 to 64 bytes, the same in every release as long
	// as requests under way may have reached it.
	Name string
	// Call does the effect. It may be done more than once: by an attempt that did
	// not live to say so, and even by two at a time when one was stopped for longer
	// than the attempt time. So it hands on Call.Key, by which the other side tells
	// that it is the same. ctx ends with the attempt time. May be nil.
	Call func(ctx context.Context, c Call) (out []byte, err error)
	// Save writes what is to be kept, in the transaction that reaches the recovery
	// point, as a [Write] does. out is what Call returned, and what Save returns
	// takes its place. May be nil.
	Save func(ctx context.Context, tx *sql.Tx, c Call, out []byte) ([]byte, error)
}

// Call is what a step knows.
type Call struct {
	// Key is for the other side: 32 hex digits that are the same in every attempt
	// of this request at this step, and of no other.
	Key string
	// Attempt is 1 for the first.
	Attempt int
	// Before is what the step before has returned, in whichever attempt.
	Before []byte
}

// Reserve does a request with effects outside the database. It commits that there
// is an attempt under way, and then goes through the steps, one transaction each;
// what the last one returns is the answer, which later calls with the same key get
// without a step being done. Every transaction proves the lease's tenure, which may
// be nil, as in [Guard.Once].
//
// An attempt that fails, panics or dies is gone on with by the next call with the
// same key, from the recovery point that was reached: at once when it could say so,
// otherwise when a step has taken longer than the attempt time (see
// [WithAttemptTime]). One that comes back after that is [ErrSuperseded], and
// nothing of its step is kept. An error that is [Final] ends the request.
//
// Errors: those of Once, [ErrSuperseded].
func (g *Guard) Reserve(ctx context.Context, lease *tier.Lease, r Request, steps ...Step) (Result, error) {
	w, err := g.newWork("reserve", lease, r)
	if err == nil {
		err = w.error(w.checkSteps(steps), 0)
	}
	var result Result
	if err == nil {
		result, err = w.reserve(ctx, steps)
	}
	g.metrics.count(result, err)
	return result, err
}

func (w *work) checkSteps(steps []Step) error {
	if ttl := w.request.ttl(w.guard); ttl < w.guard.options.attemptTime {
		return fmt.Errorf("%w: %v is under the attempt time, %v: a request would be new again before its attempt has ended", ErrBadTTL, ttl, w.guard.options.attemptTime)
	}
	if len(steps) == 0 {
		return fmt.Errorf("%w: no steps", ErrOption)
	}
	names := make(map[string]bool)
	for i, s := range steps {
		switch {
		case s.Name == "" || len(s.Name) > maxFingerprint:
			return fmt.Errorf("%w: step %d: a name has 1 to %d bytes", ErrOption, i, maxFingerprint)
		case names[s.Name]:
			return fmt.Errorf("%w: two steps are called %q", ErrOption, s.Name)
		case s.Call == nil && s.Save == nil:
			return fmt.Errorf("%w: step %q does nothing", ErrOption, s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

// reservation is an attempt that others see.
type reservation struct {
	*work
	attempt []byte
	number  int
	seed    []byte
	point   string    // the recovery point reached
	before  []byte    // what its step has returned
	until   time.Time // local, before the server's
}

// reserve looks and reserves until there is an answer or the request is ours.
func (w *work) reserve(ctx context.Context, steps []Step) (Result, error) {
	until := time.Now().Add(w.request.wait())
	for repeated := 0; ; {
		seen, err := w.lookWaiting(ctx, until)
		var mine *reservation
		if err == nil {
			result, answered, err := w.answer(seen)
			if answered {
				return result, err
			}
			if seen != nil && !seen.reusable() && (seen.alone() || seen.left > 0) {
				if seen.alone() || time.Now().After(until) {
					return Result{}, w.notOurs(seen)
				}
				if err := sleep(ctx, min(seen.left, 10*time.Millisecond)); err != nil {
					return Result{}, w.error(err, 0)
				}
				continue
			}
		}
		if err == nil {
			mine, err = w.take(ctx, seen)
		}
		if mine != nil && errors.Is(err, ErrInProgress) {
			mine.leave(ctx) // it may be ours, and nobody goes on with it
		}
		switch {
		case err == nil:
			return mine.walk(ctx, steps)
		case errors.Is(err, errBusy) && time.Now().After(until):
			return Result{}, w.inProgress(0)
		case errors.Is(err, errTaken), errors.Is(err, errBusy):
			continue
		case retryable(err) && repeated < repeats:
			repeated++
			if sleep(ctx, backOff(repeated)) == nil {
				continue
			}
		}
		return Result{}, w.error(err, 0)
	}
}

// take makes the request ours: a new one, or one that its attempt has left.
func (w *work) take(ctx context.Context, seen *row) (*reservation, error) {
	t := &transaction{work: w, attempt: newAttempt()}
	tx, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer t.end(ctx)
	if err := t.claim(ctx, tx); err != nil {
		return nil, err
	}
	mine := &reservation{work: w, attempt: t.attempt, until: time.Now().Add(w.guard.options.attemptTime)}
	if seen == nil || seen.reusable() {
		err = w.enter(ctx, tx, t.attempt, seen != nil, w.guard.options.attemptTime)
	} else {
		err = w.takeOver(ctx, tx, t.attempt)
	}
	if err != nil {
		return nil, err
	}
	now, err := w.read(ctx, tx, w.guard.tables.look()) // ours, and locked
	if err != nil {
		return nil, w.classified(ctx, err)
	}
	mine.number, mine.seed, mine.point, mine.before = now.attempts, now.seed, now.recoveryPoint, now.result
	if err := t.confirm(ctx); err != nil {
		return nil, err
	}
	return mine, t.commit(ctx, func(*row) bool { return true })
}

func (w *work) takeOver(ctx context.Context, tx Tx, attempt []byte) error {
	n, err := w.exec(ctx, tx, w.guard.tables.takeOver(), append([]any{attempt, micros(w.guard.options.attemptTime), micros(w.request.ttl(w.guard))}, w.key()...)...)
	if err == nil && n != 1 {
		err = errTaken
	}
	return err
}

// walk does the steps that are not done. Whatever ends it early, a panic too, the
// next attempt may go on at once.
func (r *reservation) walk(ctx context.Context, steps []Step) (Result, error) {
	answered := false
	defer func() {
		if !answered {
			r.leave(ctx)
		}
	}()
	rest, err := r.rest(steps)
	if err != nil {
		return Result{}, r.error(err, 0)
	}
	for i, step := range rest {
		as := stateStarted
		if i == len(rest)-1 {
			as = stateCompleted
		}
		err := r.do(ctx, step, as)
		if no, ok := errors.AsType[*final](err); ok {
			if err := r.keep(ctx, func(*sql.Tx) ([]byte, error) { return no.body, nil }, step.Name, stateFailed); err != nil {
				return Result{}, err
			}
			answered = true
			return Result{Body: no.body}, r.error(no, 0)
		}
		if err != nil {
			return Result{}, err
		}
	}
	answered = true
	return Result{Body: r.before}, nil
}

// rest are the steps after the recovery point.
func (r *reservation) rest(steps []Step) ([]Step, error) {
	if r.point == "" {
		return steps, nil
	}
	for i, s := range steps {
		if s.Name == r.point && i < len(steps)-1 {
			return steps[i+1:], nil
		}
	}
	return nil, fmt.Errorf("%w: the request has reached %q, which is no step before the last", ErrOption, r.point)
}

// do does a step and keeps what came of it.
func (r *reservation) do(ctx context.Context, step Step, as state) error {
	c := Call{Key: r.downstream(step.Name), Attempt: r.number, Before: r.before}
	var out []byte
	if step.Call != nil {
		for _, lease := range r.leases { // it will not be kept, so better not done
			if err := lease.Err(); err != nil {
				return r.error(stale(err), 0)
			}
		}
		called, cancel := context.WithDeadline(ctx, r.until)
		defer cancel()
		var err error
		if out, err = step.Call(called, c); err != nil {
			return err
		}
	}
	return r.keep(ctx, func(tx *sql.Tx) ([]byte, error) {
		if step.Save == nil {
			return out, nil
		}
		return step.Save(ctx, tx, c, out)
	}, step.Name, as)
}

// keep reaches a recovery point in a transaction, which is repeated when the
// server did not keep it.
func (r *reservation) keep(ctx context.Context, save func(*sql.Tx) ([]byte, error), point string, as state) error {
	for repeated := 0; ; repeated++ {
		err := r.keepOnce(ctx, save, point, as)
		if !retryable(err) || repeated == repeats || sleep(ctx, backOff(repeated+1)) != nil {
			return err
		}
	}
}

func (r *reservation) keepOnce(ctx context.Context, save func(*sql.Tx) ([]byte, error), point string, as state) error {
	t := &transaction{work: r.work, attempt: r.attempt}
	tx, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer t.end(ctx)
	if err := t.claim(ctx, tx); err != nil {
		return err
	}
	out, err := save(tx)
	if err != nil {
		return r.writeError(err)
	}
	until := time.Now().Add(r.guard.options.attemptTime)
	landed := (*row).ended
	if as == stateStarted {
		landed = func(seen *row) bool { return seen.recoveryPoint == point }
		err = r.advance(ctx, tx, point, out)
	} else {
		err = r.store(ctx, tx, as, out, r.attempt)
	}
	if err != nil {
		return err
	}
	if err := t.confirm(ctx); err != nil {
		return err
	}
	if err := t.commit(ctx, landed); err != nil {
		return err
	}
	r.before, r.until = out, until
	return nil
}

func (r *reservation) advance(ctx context.Context, tx Tx, point string, out []byte) error {
	if err := r.fits(out); err != nil {
		return err
	}
	args := append([]any{[]byte(point), out, micros(r.guard.options.attemptTime), micros(r.request.ttl(r.guard))}, r.key()...)
	n, err := r.execPrepared(ctx, tx, r.guard.tables.advance(), append(args, r.attempt)...)
	if err == nil && n != 1 {
		err = r.error(ErrSuperseded, 0)
	}
	return err
}

// downstream derives the key of a step's effect.
func (r *reservation) downstream(step string) string {
	sum := sha256.Sum256(append(append([]byte{}, r.seed...), step...))
	return hex.EncodeToString(sum[:16])
}

// leave lets the next attempt go on at once. If it fails, the attempt time does.
func (r *reservation) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.RollbackLimit)
	defer cancel()
	tx, err := r.guard.begin(ctx) // the pool's sessions may not commit by themselves
	if err != nil {
		return
	}
	defer rollback(ctx, tx)
	if _, err := tx.ExecContext(ctx, r.guard.tables.leave(), append(r.key(), r.attempt)...); err == nil {
		_, _ = tx.ExecContext(ctx, "COMMIT")
	}
}
