// SPDX-License-Identifier: Apache-2.0

package idemhttp

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// Middleware has a handler run inside g, once per key. It panics on options that
// cannot work, as http.Handle does. It must see the body before anything else reads
// it, and the path as clients know it.
func Middleware(g *idempotency.Guard, opts ...Option) func(http.Handler) http.Handler {
	if g == nil {
		panic("idemhttp: guard is nil")
	}
	o := newOptions(opts)
	return func(next http.Handler) http.Handler { return &middleware{options: o, guard: g, next: next} }
}

type middleware struct {
	options
	guard *idempotency.Guard
	next  http.Handler
}

type txKey struct{}

// Tx is the transaction that the handler's writes belong into, which it must not
// end; nil where there is none, as for methods without a key.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

// releaseLimit bounds giving a lock back, which happens also when the client is gone.
const releaseLimit = 5 * time.Second

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(m.methods, r.Method) {
		m.next.ServeHTTP(w, r)
		return
	}
	request, body, err := m.read(w, r)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	answer, replayed, err := m.run(r, request, body)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	answer.send(w, replayed)
}

// read is all that is looked at before any I/O but the client's.
func (m *middleware) read(w http.ResponseWriter, r *http.Request) (idempotency.Request, []byte, error) {
	request := idempotency.Request{Codec: Codec, Wait: m.wait, TTL: m.retention}
	var err error
	if request.Key, err = requestKey(r.Header); err != nil {
		return request, nil, err
	}
	if request.Scope, err = m.scope(r); err != nil {
		if idempotency.HTTPStatus(err) == http.StatusInternalServerError && !errors.Is(err, idempotency.ErrScopeMissing) {
			err = &refusal{http.StatusForbidden, "it cannot be told whose key it is"}
		}
		return request, nil, err
	}
	body, err := readBody(w, r, m.maxBody)
	if err == nil {
		request.Fingerprint, err = fingerprint(r, body)
	}
	return request, body, err
}

// unstored is a response that is sent and leaves nothing behind.
type unstored struct{ *response }

func (u unstored) Error() string { return fmt.Sprintf("idemhttp: status %d is not stored", u.Status) }

// run gets the response from the handler or from the database. It returns when the
// transaction is over and the lock is given back.
func (m *middleware) run(r *http.Request, request idempotency.Request, body []byte) (answer *response, replayed bool, err error) {
	ctx := r.Context()
	keys, err := m.locks(r, body)
	if err != nil {
		return nil, false, err
	}
	if len(keys) > 0 {
		leases, err := m.locker.AcquireAll(ctx, keys...)
		if err != nil {
			return nil, false, err
		}
		defer m.release(ctx, leases)
		var done context.CancelFunc
		ctx, done = under(ctx, leases)
		defer done()
		request.Leases = leases
	}
	var made *response // by the last run, with what is not stored
	result, err := m.guard.Once(ctx, nil, request, func(ctx context.Context, tx *sql.Tx) (stored []byte, err error) {
		made, stored, err = m.write(context.WithValue(ctx, txKey{}, tx), r, body)
		return stored, err
	})
	if u, ok := errors.AsType[unstored](err); ok {
		return u.response, false, nil
	}
	if err != nil && !errors.Is(err, idempotency.ErrFinal) {
		return nil, false, err
	}
	if !result.Replayed {
		return made, false, nil
	}
	answer, err = decode(result.Body)
	return answer, true, err
}

// write is one run of the handler.
func (m *middleware) write(ctx context.Context, r *http.Request, body []byte) (made *response, stored []byte, err error) {
	recorded := newRecorder(m.maxResponse)
	m.next.ServeHTTP(recorded, again(ctx, r, body))
	made, err = recorded.response()
	if err != nil {
		return nil, nil, err
	}
	outcome := m.policy(made.Status)
	if outcome == Retry {
		return nil, nil, unstored{made}
	}
	stored, err = made.encode()
	if err == nil && outcome == Refuse {
		err = idempotency.Final(stored, nil)
	}
	return made, stored, err
}

// locks are the keys to lock for a request.
func (m *middleware) locks(r *http.Request, body []byte) ([]string, error) {
	if m.lockKeys == nil {
		return nil, nil
	}
	keys, err := m.lockKeys(again(r.Context(), r, body))
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, err.Error()}
	}
	return keys, nil
}

// under ends with the request and with each lease, and knows the leases: what is
// acquired under it is a further handle.
func under(ctx context.Context, leases tier.Leases) (context.Context, context.CancelFunc) {
	held, let := leases.Context()
	joined, cancel := context.WithCancelCause(held)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return joined, func() {
		stop()
		cancel(context.Canceled)
		let()
	}
}

func (m *middleware) release(ctx context.Context, leases tier.Leases) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	if err := leases.Release(ctx); err != nil {
		m.logger.Warn("a lock was not released, it expires", zap.Error(withoutKey(err)))
	}
}
