// SPDX-License-Identifier: Apache-2.0

package tierlockfx_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"

	"go.uber.org/fx"

	"github.com/tierlock/tierlock/config"
	tierlockfx "github.com/tierlock/tierlock/fx"
	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// An application of fx; here on in-memory drivers, in a service with
// tierlockfx.Connect and tierlockfx.Module in the place of the first two options.
func Example() {
	app := fx.New(
		fx.Provide(func() (driver.Filter, driver.Authority) { return tiertest.NewFilter(), tiertest.NewAuthority() }),
		tierlockfx.Locker,
		fx.Supply(config.Default()), // config.Load("locks.yaml")
		fx.NopLogger,
		fx.Invoke(func(life fx.Lifecycle, l *tier.Locker) {
			life.Append(fx.StartHook(func(ctx context.Context) error {
				return l.Do(ctx, "payment/acct-42", func(context.Context, *tier.Lease) error {
					fmt.Println("charged once")
					return nil
				})
			}))
		}),
	)
	if err := app.Start(context.Background()); err != nil {
		fmt.Println(err)
	}
	if err := app.Stop(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: charged once
}

// A service that writes once per request id: the business pool has no name, the
// lock's has.
func ExampleGuard() {
	fx.New(
		fx.Provide(func() (config.Config, error) { return config.Load("locks.yaml") }),
		fx.Provide(func() (*sql.DB, error) { return sql.Open("mysql", "shop:secret@tcp(127.0.0.1:3306)/shop") }),
		tierlockfx.Connect, tierlockfx.Module, tierlockfx.Guard,
		fx.Invoke(func(mux *http.ServeMux, l *tier.Locker, g *idempotency.Guard) {
			mux.Handle("POST /payments", payments{l, g})
		}),
	)
}

// payments is a handler of the service.
type payments struct {
	locker *tier.Locker
	guard  *idempotency.Guard
}

func (payments) ServeHTTP(http.ResponseWriter, *http.Request) {}
