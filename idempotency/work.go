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

	"github.com/tierlock/tierlock/internal/sqltx"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// work is one call for one request.
type work struct {
	guard   *Guard
	op      string
	request Request
	leases  []*tier.Lease // to prove, in the order of their keys
}

func (g *Guard) newWork(op string, lease *tier.Lease, r Request) (*work, error) {
	w := &work{guard: g, op: op, request: r}
	err := r.check(g)
	if err == nil {
		w.leases, err = r.proofs(g, lease)
	}
	if err == nil && g.life.Err() != nil {
		err = ErrClosed
	}
	return w, w.error(err, 0)
}

// error says which request err is about. What the write itself returned stays
// what it is.
func (w *work) error(err error, retryAfter time.Duration) error {
	if err == nil {
		return nil
	}
	if _, said := errors.AsType[*Error](err); said {
		return err
	}
	key := w.request.Key
	if len(key) > maxKey {
		key = key[:64] + "..." // refused for it: it may be of any size
	}
	return &Error{Op: w.op, Scope: w.request.Scope, Key: key, RetryAfter: retryAfter, Err: err}
}

func (w *work) key() []any {
	return []any{[]byte(w.guard.options.namespace), []byte(w.request.Scope), []byte(w.request.Key)}
}

// row is what a look has seen.
type row struct {
	state         state
	fingerprint   []byte
	attempt       []byte
	attempts      int
	seed          []byte
	recoveryPoint string
	codec         uint16
	result        []byte
	completedAt   sql.NullInt64 // microseconds since 1970
	expired       bool
	bounded       bool          // an attempt has a time
	left          time.Duration // of the attempt under way
}

// ended reports that there is an answer.
func (r *row) ended() bool { return r.state == stateCompleted || r.state == stateFailed }

// reusable reports that the row is past its retention, and nobody works on it.
func (r *row) reusable() bool { return r.expired && r.left <= 0 && r.state != stateSpent }

// alone reports that the row was started by a transaction that should have ended
// with its answer.
func (r *row) alone() bool { return r.state == stateStarted && r.attempt != nil && !r.bounded }

var (
	// errBusy means that a transaction has the row.
	errBusy = errors.New("a transaction has the row")
	// errTaken means that another attempt came first: look again.
	errTaken = errors.New("another attempt came first")
)

// looked is where a row is read.
type looked interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// look reads the row in a transaction of one statement, so that it is locked for
// no longer. Nil is no row.
func (w *work) look(ctx context.Context) (*row, error) {
	conn, err := w.guard.db.Conn(ctx)
	if err != nil {
		return nil, notBegun(ctx, err)
	}
	defer func() { _ = conn.Close() }() // back to the pool
	alone, err := w.guard.autocommits(ctx, conn)
	if err != nil {
		return nil, notBegun(ctx, err)
	}
	r, err := w.read(ctx, conn, w.guard.tables.look())
	if !alone {
		if err := endTransaction(ctx, conn); err != nil {
			return nil, notBegun(ctx, err)
		}
	}
	if err != nil && !errors.Is(err, errBusy) {
		err = notBegun(ctx, err)
	}
	return r, err
}

// autocommits reports whether a statement on a connection of the pool is a
// transaction of its own. All of a pool are made alike, so one is asked.
func (g *Guard) autocommits(ctx context.Context, conn *sql.Conn) (bool, error) {
	if g.autocommit.Load() {
		return true, nil
	}
	var on bool
	if err := conn.QueryRowContext(ctx, "SELECT @@autocommit").Scan(&on); err != nil {
		return false, err
	}
	g.autocommit.Store(on)
	return on, nil
}

// endTransaction ends what a look has begun on a connection that does not commit by
// itself, also when ctx has ended: the connection goes back to its pool.
func endTransaction(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.RollbackLimit)
	defer cancel()
	_, err := conn.ExecContext(ctx, "ROLLBACK")
	return err
}

// read returns errBusy, or what the server answered.
func (w *work) read(ctx context.Context, from looked, statement string) (*row, error) {
	var r row
	var left sql.NullInt64
	err := from.QueryRowContext(ctx, statement, w.key()...).Scan(
		&r.state, &r.fingerprint, &r.attempt, &r.attempts, &r.seed, &r.recoveryPoint, &r.codec, &r.result, &r.completedAt, &r.expired, &left)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case isAnswer(err, 1205), isAnswer(err, 3572):
		return nil, errBusy
	case err != nil:
		return nil, err
	}
	r.bounded = left.Valid
	r.left = time.Duration(left.Int64) * time.Microsecond
	return &r, nil
}

// lookWaiting looks again while a transaction has the row, for as long as the
// request may wait.
func (w *work) lookWaiting(ctx context.Context, until time.Time) (*row, error) {
	for {
		r, err := w.look(ctx)
		if !errors.Is(err, errBusy) {
			return r, err
		}
		pause := 2*time.Millisecond + rand.N(8*time.Millisecond)
		if time.Now().Add(pause).After(until) {
			return nil, w.inProgress(0)
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// askAgain is when an attempt in a transaction may be over: nobody knows.
const askAgain = time.Second

func (w *work) inProgress(left time.Duration) error {
	if left <= 0 {
		left = askAgain
	}
	return w.error(ErrInProgress, left)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer is what a row has to say to the request. An answer that is none means
// that the write has to be done: in r when there is one.
func (w *work) answer(r *row) (result Result, answered bool, err error) {
	switch {
	case r == nil:
		return Result{}, false, nil
	case r.state == stateSpent, w.guard.options.forbidReuse && r.reusable():
		return Result{}, true, w.error(w.matched(r, ErrSpent), 0)
	case r.reusable():
		return Result{}, false, nil
	}
	if err := w.matched(r, nil); err != nil {
		return Result{}, true, w.error(err, 0)
	}
	switch r.state {
	case stateStarted:
		return Result{}, false, nil
	case stateCompleted, stateFailed:
		if r.codec != w.request.Codec {
			return Result{}, true, w.error(fmt.Errorf("%w: stored as %d, asked for as %d", ErrResultUndecodable, r.codec, w.request.Codec), 0)
		}
		result = Result{Body: r.result, Replayed: true, CompletedAt: time.UnixMicro(r.completedAt.Int64)}
		if r.state == stateFailed {
			return result, true, w.error(&final{body: r.result}, 0)
		}
		return result, true, nil
	case stateSpent:
	}
	return Result{}, true, w.error(fmt.Errorf("%w: the row is in state %d, which this release does not know", ErrSchema, r.state), 0)
}

// matched is ErrMismatch when the row is of another request, whatever its state.
func (w *work) matched(r *row, otherwise error) error {
	if !bytes.Equal(r.fingerprint, w.request.Fingerprint) {
		return ErrMismatch
	}
	return otherwise
}

// newAttempt is a token that no other attempt has.
func newAttempt() []byte {
	token := driver.NewToken()
	return token[:]
}

func micros(d time.Duration) int64 { return d.Microseconds() }
