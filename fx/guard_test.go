// SPDX-License-Identifier: Apache-2.0

package tierlockfx_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

	tierlockfx "github.com/tierlock/tierlock/fx"
	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// business opens a pool as an application does, beside the lock's own.
func business(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// A guard in an app writes once under the app's lock; without its tables the app
// does not start.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := tiers.New(t, stack.MariaDB)
	var l *tier.Locker
	var g *idempotency.Guard
	options := func() fx.Option {
		return fx.Options(fx.NopLogger, fx.Supply(configOf(t, s, "")), fx.Supply(business(t, s.Database.DSN())),
			tierlockfx.Connect, tierlockfx.Module, tierlockfx.Guard, fx.Populate(&l, &g))
	}
	failing := fx.New(options())
	if err := failing.Start(t.Context()); !errors.Is(err, idempotency.ErrSchema) || !strings.Contains(err.Error(), "EnsureSchema") {
		t.Errorf("start without tables: %v", err)
	}
	if err := failing.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := idempotency.EnsureSchema(t.Context(), s.Admin); err != nil {
		t.Fatal(err)
	}
	app := fxtest.New(t, options())
	app.RequireStart()
	request := idempotency.Request{Key: "order-1", Fingerprint: []byte("one")}
	for _, replayed := range []bool{false, true} {
		err := l.Do(t.Context(), "k", func(ctx context.Context, lease *tier.Lease) error {
			result, err := g.Once(ctx, lease, request, func(context.Context, *sql.Tx) ([]byte, error) { return []byte("done"), nil })
			if string(result.Body) != "done" || result.Replayed != replayed {
				t.Errorf("%q, replayed %v, want %v", result.Body, result.Replayed, replayed)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	app.RequireStop()
	if _, err := g.Once(t.Context(), nil, request, nil); !errors.Is(err, idempotency.ErrClosed) {
		t.Errorf("after stop: %v", err)
	}
}

// A database that is out does not keep an app from starting.
func TestGuard_databaseDown(t *testing.T) {
	t.Parallel()
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.Logger = "tcp", "127.0.0.1:1", &mysql.NopLogger{}
	var g *idempotency.Guard
	c := configOf(t, tiers.New(t, stack.MariaDB), "")
	app := fxtest.New(t, fx.NopLogger, fx.Supply(c), fx.Supply(business(t, cfg.FormatDSN())), tierlockfx.Guard, fx.Populate(&g))
	app.RequireStart()
	if _, err := g.Once(t.Context(), nil, idempotency.Request{Key: "k", Fingerprint: []byte("one")}, nil); !errors.Is(err, idempotency.ErrStoreDown) {
		t.Errorf("once: %v", err)
	}
	app.RequireStop()
}
