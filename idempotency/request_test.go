// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// unasked is a database that nothing may be asked of.
type unasked struct{ t *testing.T }

func (u unasked) Connect(context.Context) (sqldriver.Conn, error) {
	u.t.Error("a connection was asked for")
	return nil, errors.New("unasked")
}

func (u unasked) Driver() sqldriver.Driver { return nil }

func unaskedGuard(t *testing.T, opts ...idempotency.Option) *idempotency.Guard {
	t.Helper()
	db := sql.OpenDB(unasked{t})
	t.Cleanup(func() { _ = db.Close() })
	g, err := idempotency.New(db, append([]idempotency.Option{idempotency.WithReapInterval(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestRequest_refused has every entry point refuse, before any I/O, what can never
// work.
func TestRequest_refused(t *testing.T) {
	t.Parallel()
	lease, err := tiertest.NewLocker(t).Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	l, err := tier.New(nil, unfenced{tiertest.NewAuthority()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	local, err := l.Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Release(context.Background()) })

	ok := idempotency.Request{Key: "order-1", Fingerprint: payload("one")}
	for name, c := range map[string]struct {
		edit   func(r *idempotency.Request)
		opts   []idempotency.Option
		lease  *tier.Lease
		want   error
		status int
	}{
		"no key":                 {edit: func(r *idempotency.Request) { r.Key = "" }, want: idempotency.ErrKeyMissing, status: http.StatusBadRequest},
		"blank key":              {edit: func(r *idempotency.Request) { r.Key = " \t " }, want: idempotency.ErrKeyMissing, status: http.StatusBadRequest},
		"long key":               {edit: func(r *idempotency.Request) { r.Key = strings.Repeat("k", 256) }, want: idempotency.ErrKeyTooLong, status: http.StatusBadRequest},
		"key with NUL":           {edit: func(r *idempotency.Request) { r.Key = "a\x00b" }, want: idempotency.ErrKeyInvalid, status: http.StatusBadRequest},
		"key with newline":       {edit: func(r *idempotency.Request) { r.Key = "a\nb" }, want: idempotency.ErrKeyInvalid, status: http.StatusBadRequest},
		"key with C1 control":    {edit: func(r *idempotency.Request) { r.Key = "a\u0085b" }, want: idempotency.ErrKeyInvalid, status: http.StatusBadRequest},
		"key that is no UTF-8":   {edit: func(r *idempotency.Request) { r.Key = "a\xffb" }, want: idempotency.ErrKeyInvalid, status: http.StatusBadRequest},
		"long scope":             {edit: func(r *idempotency.Request) { r.Scope = strings.Repeat("s", 256) }, want: idempotency.ErrKeyTooLong, status: http.StatusBadRequest},
		"no scope":               {opts: []idempotency.Option{idempotency.WithScopeRequired()}, want: idempotency.ErrScopeMissing, status: http.StatusInternalServerError},
		"no fingerprint":         {edit: func(r *idempotency.Request) { r.Fingerprint = nil }, want: idempotency.ErrFingerprintMissing, status: http.StatusInternalServerError},
		"long fingerprint":       {edit: func(r *idempotency.Request) { r.Fingerprint = make([]byte, 65) }, want: idempotency.ErrOption, status: http.StatusInternalServerError},
		"negative TTL":           {edit: func(r *idempotency.Request) { r.TTL = -time.Second }, want: idempotency.ErrBadTTL, status: http.StatusInternalServerError},
		"TTL under 1 ms":         {edit: func(r *idempotency.Request) { r.TTL = time.Microsecond }, want: idempotency.ErrBadTTL, status: http.StatusInternalServerError},
		"TTL of a century":       {edit: func(r *idempotency.Request) { r.TTL = 100 * 365 * 24 * time.Hour }, want: idempotency.ErrBadTTL, status: http.StatusInternalServerError},
		"large result announced": {edit: func(r *idempotency.Request) { r.MaxResult = 1<<20 + 1 }, want: idempotency.ErrResultTooLarge, status: http.StatusInternalServerError},
		"a lease that is nil":    {edit: func(r *idempotency.Request) { r.Leases = tier.Leases{nil} }, want: idempotency.ErrOption, status: http.StatusInternalServerError},
		"lease of another key":   {lease: lease, edit: func(r *idempotency.Request) { r.LockKey = "other" }, want: idempotency.ErrWrongKey, status: http.StatusInternalServerError},
		"of another namespace":   {lease: lease, opts: []idempotency.Option{idempotency.WithNamespace("other")}, want: idempotency.ErrWrongKey, status: http.StatusInternalServerError},
		"lease without a row":    {lease: lease, want: idempotency.ErrWrongDB, status: http.StatusInternalServerError},
		"lease without a fence":  {lease: local, want: idempotency.ErrUnfenced, status: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := unaskedGuard(t, c.opts...)
			r := ok
			if c.edit != nil {
				c.edit(&r)
			}
			never := func() ([]byte, error) {
				t.Error("the write was run")
				return nil, nil
			}
			for entry, call := range map[string]func() error{
				"Once": func() error {
					_, err := g.Once(t.Context(), c.lease, r, func(context.Context, *sql.Tx) ([]byte, error) { return never() })
					return err
				},
				"OnceTx": func() error {
					_, err := g.OnceTx(t.Context(), untouched{t}, c.lease, r, func(context.Context) ([]byte, error) { return never() })
					return err
				},
				"Reserve": func() error {
					_, err := g.Reserve(t.Context(), c.lease, r, idempotency.Step{
						Name: "done", Call: func(context.Context, idempotency.Call) ([]byte, error) { return never() },
					})
					return err
				},
			} {
				err := call()
				if !errors.Is(err, c.want) {
					t.Errorf("%s: %v, want %v", entry, err, c.want)
				}
				if got := idempotency.HTTPStatus(err); got != c.status {
					t.Errorf("%s: status %d, want %d", entry, got, c.status)
				}
				if said, ok := errors.AsType[*idempotency.Error](err); !ok || len(said.Key) > 255 {
					t.Errorf("%s: %v does not say which request", entry, err)
				}
			}
		})
	}
}

func TestReserve_stepsRefused(t *testing.T) {
	t.Parallel()
	g := unaskedGuard(t)
	call := func(context.Context, idempotency.Call) ([]byte, error) { return nil, nil }
	for name, c := range map[string]struct {
		ttl   time.Duration
		steps []idempotency.Step
		want  error
	}{
		"none":                       {want: idempotency.ErrOption},
		"without a name":             {steps: []idempotency.Step{{Call: call}}, want: idempotency.ErrOption},
		"with a long name":           {steps: []idempotency.Step{{Name: strings.Repeat("n", 65), Call: call}}, want: idempotency.ErrOption},
		"two of a name":              {steps: []idempotency.Step{{Name: "a", Call: call}, {Name: "a", Call: call}}, want: idempotency.ErrOption},
		"that does nothing":          {steps: []idempotency.Step{{Name: "a"}}, want: idempotency.ErrOption},
		"longer than the TTL may be": {ttl: time.Second, steps: []idempotency.Step{{Name: "a", Call: call}}, want: idempotency.ErrBadTTL},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := g.Reserve(t.Context(), nil, idempotency.Request{Key: "k", Fingerprint: payload("one"), TTL: c.ttl}, c.steps...)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestNew_refused(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(unasked{t})
	t.Cleanup(func() { _ = db.Close() })
	for name, c := range map[string]struct {
		opt  idempotency.Option
		want error
	}{
		"namespace":                    {idempotency.WithNamespace("Shop!"), idempotency.ErrOption},
		"prefix":                       {idempotency.WithTablePrefix("a`b"), idempotency.ErrOption},
		"no retention":                 {idempotency.WithRetention(0), idempotency.ErrBadRetention},
		"retention under a ms":         {idempotency.WithRetention(time.Microsecond), idempotency.ErrBadRetention},
		"retention under attempt time": {idempotency.WithRetention(30 * time.Second), idempotency.ErrBadRetention},
		"max result":                   {idempotency.WithMaxResult(-1), idempotency.ErrOption},
		"attempt time":                 {idempotency.WithAttemptTime(time.Millisecond), idempotency.ErrOption},
		"reap interval":                {idempotency.WithReapInterval(time.Millisecond), idempotency.ErrOption},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := idempotency.New(db, c.opt); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if _, err := idempotency.New(nil); !errors.Is(err, idempotency.ErrOption) {
		t.Errorf("without a pool: %v", err)
	}
}

// TestTx_refused has what takes a transaction refuse none, and one that has ended.
func TestTx_refused(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		lease := s.acquire(t, s.locker)
		ended, err := s.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := ended.Commit(); err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func(tx idempotency.Tx) error{
			"ConfirmTx": func(tx idempotency.Tx) error { return idempotency.ConfirmTx(t.Context(), tx, lease) },
			"ReleaseTx": func(tx idempotency.Tx) error { return idempotency.ReleaseTx(t.Context(), tx, lease) },
			"Admit":     func(tx idempotency.Tx) error { return g.Admit(t.Context(), tx, lease) },
			"OnceTx": func(tx idempotency.Tx) error {
				_, err := g.OnceTx(t.Context(), tx, lease, buy("order"), func(context.Context) ([]byte, error) {
					t.Error("the write was run")
					return nil, nil
				})
				return err
			},
		} {
			for name, c := range map[string]struct {
				tx   idempotency.Tx
				want error
			}{
				"nil":            {nil, idempotency.ErrNilTx},
				"nil *sql.Tx":    {(*sql.Tx)(nil), idempotency.ErrNilTx},
				"a pool":         {s.db, idempotency.ErrNoTx},
				"one that ended": {ended, idempotency.ErrTxDone},
			} {
				if err := call(c.tx); !errors.Is(err, c.want) {
					t.Errorf("%s, %s: %v, want %v", what, name, err, c.want)
				}
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
