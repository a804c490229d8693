// SPDX-License-Identifier: Apache-2.0

package tierlockfx_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	tierlockfx "github.com/tierlock/tierlock/fx"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// configOf is the config of a service on a test's tiers.
func configOf(t *testing.T, s *tiers.Tiers, more string) config.Config {
	t.Helper()
	c, err := config.Parse("locks.yaml", []byte("namespace: fx\nsweep: {every: 0s}\n"+more),
		config.WithEnviron([]string{"TIERLOCK_REDIS_URL=" + s.Redis.URL(), "TIERLOCK_MYSQL_DSN=" + s.Database.DSN()}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onDrivers is an app on in-memory drivers.
func onDrivers(t *testing.T, f driver.Filter, a driver.Authority, c config.Config, more ...fx.Option) (*fxtest.App, *tier.Locker) {
	t.Helper()
	var l *tier.Locker
	app := fxtest.New(t, append([]fx.Option{
		fx.NopLogger, fx.Supply(c), tierlockfx.Locker, fx.Populate(&l),
		fx.Provide(func() (driver.Filter, driver.Authority) { return f, a }),
	}, more...)...)
	return app, l
}

// With every optional part absent the app starts, locks and stops.
func TestModule_bare(t *testing.T) {
	t.Parallel()
	s := tiers.New(t, stack.MariaDB)
	var l *tier.Locker
	app := fxtest.New(t, fx.NopLogger, fx.Supply(configOf(t, s, "")), tierlockfx.Connect, tierlockfx.Module, fx.Populate(&l))
	app.RequireStart()
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if lease.Level() != tier.LevelFull {
		t.Errorf("level %s, want full", lease.Level())
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	app.RequireStop()
	if _, err := l.Acquire(t.Context(), "k"); !errors.Is(err, tier.ErrClosed) {
		t.Errorf("after stop: %v, want ErrClosed", err)
	}
}

// With every part there, and the pool and the client of the application's own,
// which it closes itself.
func TestModule_full(t *testing.T) {
	t.Parallel()
	s := tiers.New(t, stack.MariaDB)
	c := configOf(t, s, "")
	pool, err := mysqlauth.OpenPool(s.Database.DSN())
	if err != nil {
		t.Fatal(err)
	}
	business, err := sql.Open("mysql", s.Database.DSN())
	if err != nil {
		t.Fatal(err)
	}
	client, err := redisfast.OpenClient(s.Redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	var l *tier.Locker
	app := fxtest.New(t, fx.NopLogger, fx.Supply(c, business), tierlockfx.Module, fx.Populate(&l),
		fx.Supply(fx.Annotate(pool, fx.ResultTags(`name:"tierlock"`))),
		fx.Provide(func() prometheus.Registerer { return registry }),
		fx.Provide(zap.NewNop),
		fx.Provide(func() redis.UniversalClient { return client }),
		fx.Supply([]redisfast.Option{redisfast.WithPrefix(s.Prefix)}, []tier.Option{tier.WithHolder("the test")}),
	)
	app.RequireStart()
	lease, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if lease.Level() != tier.LevelFull || lease.Holder() != "the test" {
		t.Errorf("level %s, holder %q", lease.Level(), lease.Holder())
	}
	if n := s.Marks(t); n != 1 {
		t.Errorf("%d marks under the prefix that was asked for, want 1", n)
	}
	if n := business.Stats().OpenConnections; n != 0 {
		t.Errorf("the lock used %d connections of the business", n)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	app.RequireStop()
	families, err := registry.Gather()
	if err != nil || len(families) == 0 {
		t.Errorf("%d metric families, %v", len(families), err)
	}
	if err := pool.PingContext(t.Context()); err != nil {
		t.Errorf("the application's pool after stop: %v", err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the application's client after stop: %v", err)
	}
	if err := errors.Join(pool.Close(), business.Close(), client.Close()); err != nil {
		t.Error(err)
	}
}

// What is missing is said, with what to do.
func TestModule_missing(t *testing.T) {
	t.Parallel()
	mysqlAlone := "policies: [{match: '**', tiers: mysql}]\n"
	for name, c := range map[string]struct {
		yaml string
		env  []string
		says string
	}{
		"no dsn":   {"", []string{"TIERLOCK_REDIS_URL=redis://127.0.0.1:1"}, "mysql.dsn is not set"},
		"no redis": {"", []string{"TIERLOCK_MYSQL_DSN=u@tcp(127.0.0.1:1)/d"}, "no redis.UniversalClient"},
		"no redis for one policy": {
			"policies: [{match: 'a/**', tiers: mysql}, {match: 'b/**'}]\n",
			[]string{"TIERLOCK_MYSQL_DSN=u@tcp(127.0.0.1:1)/d"},
			`policy "b/**"`,
		},
		"none needed": {mysqlAlone, []string{"TIERLOCK_MYSQL_DSN=u@tcp(127.0.0.1:1)/d"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parsed, err := config.Parse("locks.yaml", []byte(c.yaml+"sweep: {every: 0s}\n"), config.WithEnviron(c.env))
			if err != nil {
				t.Fatal(err)
			}
			connect := tierlockfx.Connect
			if parsed.MySQL.DSN.Reveal() != "" { // an app that was never started closes nothing
				pool, err := mysqlauth.OpenPool(parsed.MySQL.DSN.Reveal())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = pool.Close() }()
				connect = fx.Options(fx.Supply(fx.Annotate(pool, fx.ResultTags(`name:"tierlock"`))), fx.Provide(tierlockfx.ConnectRedis))
			}
			var l *tier.Locker
			err = fx.New(fx.NopLogger, fx.Supply(parsed), connect, tierlockfx.Module, fx.Populate(&l)).Err()
			switch {
			case c.says == "" && err != nil:
				t.Errorf("%v, want none", err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v, want %q", err, c.says)
			}
			if l != nil {
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A start fails for what needs a person, and not for an outage.
func TestModule_start(t *testing.T) {
	t.Parallel()
	a := tiertest.NewAuthority()
	a.Down()
	app, l := onDrivers(t, nil, a, config.Default())
	app.RequireStart()
	a.Up()
	if lease, err := l.Acquire(t.Context(), "k"); err != nil {
		t.Errorf("after the outage: %v", err)
	} else if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	app.RequireStop()

	app, l = onDrivers(t, nil, misconfigured{tiertest.NewAuthority()}, config.Default())
	if err := app.Start(t.Context()); driver.ClassOf(err) != driver.ClassConfig {
		t.Errorf("start: %v, want what needs a person", err)
	}
	if _, err := l.Acquire(t.Context(), "k"); !errors.Is(err, tier.ErrClosed) {
		t.Errorf("after a failed start: %v, want ErrClosed", err)
	}
}

// misconfigured is an authority whose tables are not there.
type misconfigured struct{ *tiertest.Authority }

func (misconfigured) Check(context.Context) error {
	return &driver.Error{Tier: "mysql", Op: "check", Class: driver.ClassConfig, Err: errors.New("no table")}
}

// A stop with a thousand leases and as many waiters: N2, N4.
func TestModule_stop_N2_N4(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		drain        time.Duration
		releaseAfter time.Duration // 0: when their contexts end, as holders should
		down         bool
		least, most  time.Duration
	}{
		{name: "no drain", least: 0, most: 2 * time.Second},
		{name: "drain", drain: 5 * time.Second, releaseAfter: time.Second, least: 900 * time.Millisecond, most: 3 * time.Second},
		// What a driver leaves to expire is its own error; those in memory leave nothing.
		{name: "servers down", down: true, releaseAfter: time.Millisecond, most: 6 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, a := tiertest.NewFilter(), tiertest.NewAuthority()
			cfg := config.Default()
			cfg.Drain = c.drain
			cfg.Defaults.Wait = time.Minute
			app, l := onDrivers(t, f, a, cfg, fx.StopTimeout(15*time.Second))
			app.RequireStart()
			leases, err := l.AcquireAll(t.Context(), tier.Segments("k", 1000)...)
			if err != nil {
				t.Fatal(err)
			}
			waiters := make(chan error, 1000)
			for i := range 1000 {
				go func() {
					_, err := l.Acquire(context.Background(), tier.Segments("k", 1000)[i])
					waiters <- err
				}()
			}
			time.Sleep(200 * time.Millisecond)
			if c.down {
				f.Down()
				a.Down()
			}
			released := make(chan struct{})
			go func() {
				defer close(released)
				if c.releaseAfter == 0 {
					<-leases[0].Context().Done()
				}
				time.Sleep(c.releaseAfter)
				_ = leases.Release(context.Background())
			}()
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // what fx gives by default
			defer cancel()
			err = app.Stop(ctx)
			if took := time.Since(start); took < c.least || took > c.most {
				t.Errorf("stop took %v, want %v to %v", took, c.least, c.most)
			}
			if err != nil {
				t.Errorf("stop: %.300v", err)
			}
			for range 1000 {
				if err := <-waiters; !errors.Is(err, tier.ErrClosed) && !errors.Is(err, tier.ErrUnavailable) {
					t.Errorf("a waiter heard %v, want ErrClosed", err)
				}
			}
			<-released
		})
	}
}
