// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// sentinel is an error of the catalogue, with the HTTP status that tells a
// client the same.
type sentinel struct {
	text   string
	status int
}

func (s *sentinel) Error() string { return s.text }

// What can come of a guarded write, to be asked for with errors.Is. [HTTPStatus]
// says what a client may be told.
var (
	// ErrKeyMissing means that there is no idempotency key, or only white space.
	ErrKeyMissing error = &sentinel{"idempotency: no key", http.StatusBadRequest}
	// ErrKeyTooLong means that the key has more than 255 bytes.
	ErrKeyTooLong error = &sentinel{"idempotency: key is too long", http.StatusBadRequest}
	// ErrKeyInvalid means that the key holds control characters or is not UTF-8.
	ErrKeyInvalid error = &sentinel{"idempotency: key is invalid", http.StatusBadRequest}
	// ErrScopeMissing means that the guard wants a scope (see [WithScopeRequired])
	// and the request has none.
	ErrScopeMissing error = &sentinel{"idempotency: no scope", http.StatusInternalServerError}
	// ErrFingerprintMissing means that the request does not say what it asks for.
	ErrFingerprintMissing error = &sentinel{"idempotency: no fingerprint", http.StatusInternalServerError}
	// ErrUnencodablePayload means that a payload has no canonical form.
	ErrUnencodablePayload error = &sentinel{"idempotency: payload has no canonical form", http.StatusBadRequest}
	// ErrMismatch means that the key was used before for something else. The
	// stored answer is not told.
	ErrMismatch error = &sentinel{"idempotency: key was used for another request", http.StatusUnprocessableEntity}
	// ErrInProgress means that an attempt under this key is under way, or that
	// what came of one is not known yet. Asking again with the same key is safe,
	// and the only way to learn the answer.
	ErrInProgress error = &sentinel{"idempotency: request is in progress", http.StatusConflict}
	// ErrSuperseded means that this attempt took longer than it had, another has
	// taken over, and nothing of this one's last transaction remains.
	ErrSuperseded error = &sentinel{"idempotency: attempt was superseded", http.StatusConflict}
	// ErrFinal means that the write failed for good (see [Final]), now or in the
	// attempt that is replayed.
	ErrFinal error = &sentinel{"idempotency: request failed for good", http.StatusUnprocessableEntity}
	// ErrSpent means that the key was used, its answer is not kept any more, and
	// the guard forbids to use it again (see [WithForbidReuse]).
	ErrSpent error = &sentinel{"idempotency: key is spent", http.StatusUnprocessableEntity}
	// ErrStaleFence means that the tenure is over: another was granted the key,
	// the lease expired or was freed, or its Release has begun. The transaction
	// must be rolled back. Trying again with the same lease is of no use.
	ErrStaleFence error = &sentinel{"idempotency: stale fence", http.StatusConflict}
	// ErrUnfenced means that the lease has no fence, so that nothing can be
	// proved: it was granted without the authority.
	ErrUnfenced error = &sentinel{"idempotency: lease has no fence", http.StatusServiceUnavailable}
	// ErrWrongKey means that the lease is of another key or namespace than what
	// is written.
	ErrWrongKey error = &sentinel{"idempotency: lease is of another key", http.StatusInternalServerError}
	// ErrResultTooLarge means that the answer has, or may have, more bytes than
	// the guard stores. Nothing was written.
	ErrResultTooLarge error = &sentinel{"idempotency: result is too large", http.StatusInternalServerError}
	// ErrResultUndecodable means that the stored answer is of another codec than
	// the request expects. The write is not run again.
	ErrResultUndecodable error = &sentinel{"idempotency: stored result is of another codec", http.StatusInternalServerError}
	// ErrBadTTL means that a request's TTL or time is out of bounds.
	ErrBadTTL error = &sentinel{"idempotency: bad TTL", http.StatusInternalServerError}
	// ErrBadRetention means that the guard's retention is out of bounds.
	ErrBadRetention error = &sentinel{"idempotency: bad retention", http.StatusInternalServerError}
	// ErrOption means that an option, or an argument that the program itself
	// chose, is invalid.
	ErrOption error = &sentinel{"idempotency: invalid option", http.StatusInternalServerError}
	// ErrNilTx means that there is no transaction.
	ErrNilTx error = &sentinel{"idempotency: transaction is nil", http.StatusInternalServerError}
	// ErrTxDone means that the transaction has ended: the write has committed or
	// rolled back itself, or its context ended.
	ErrTxDone error = &sentinel{"idempotency: transaction has ended", http.StatusInternalServerError}
	// ErrWrongDB means that the transaction's database has no lease table, or
	// its user may not write it.
	ErrWrongDB error = &sentinel{"idempotency: wrong database", http.StatusInternalServerError}
	// ErrNoTx means that a pool, or a connection without a transaction, was given
	// where a transaction is needed: each of its statements would be committed by
	// itself, and guard nothing.
	ErrNoTx error = &sentinel{"idempotency: not a transaction", http.StatusInternalServerError}
	// ErrRetryTx means that the transaction is gone: it was rolled back, and
	// the whole of it may be tried again.
	ErrRetryTx error = &sentinel{"idempotency: transaction rolled back, try it again", http.StatusServiceUnavailable}
	// ErrStoreDown means that the business database does not serve. Nothing was
	// written.
	ErrStoreDown error = &sentinel{"idempotency: database does not serve", http.StatusServiceUnavailable}
	// ErrSchema means that a table of this package is missing or not ours to
	// write: see [EnsureSchema].
	ErrSchema error = &sentinel{"idempotency: table is missing", http.StatusInternalServerError}
	// ErrClosed means that the guard was closed.
	ErrClosed error = &sentinel{"idempotency: guard is closed", http.StatusServiceUnavailable}
)

// Error says which request an error is about.
type Error struct {
	Op    string // "once", "reserve", ...
	Scope string
	Key   string
	// RetryAfter is how long to wait before asking again, 0 when nobody knows.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s %q: %v", e.Op, e.Key, e.Err)
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (ask again in %v)", e.RetryAfter.Round(time.Millisecond))
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// HTTPStatus is what a client may be told about err: 200 for nil, the hint of
// this package's or the lock's error, and 500 for every other.
func HTTPStatus(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if s, ok := errors.AsType[*sentinel](err); ok {
		return s.status
	}
	switch {
	case errors.Is(err, tier.ErrKey):
		return http.StatusBadRequest
	case errors.Is(err, tier.ErrHeld), errors.Is(err, tier.ErrLost), errors.Is(err, tier.ErrMaxHold):
		return http.StatusConflict
	case errors.Is(err, tier.ErrUnavailable), errors.Is(err, tier.ErrClosed):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// RetryAfter is how long a client should wait before it asks again with the same
// key, 0 when err does not say.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok && e.RetryAfter > 0 {
		return e.RetryAfter
	}
	if e, ok := errors.AsType[*tier.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
