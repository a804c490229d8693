// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// BenchmarkWhich is the README's "which lock when": one row is changed under each of
// the locks, by one worker, by sixteen on as many rows, and by sixteen on one row.
func BenchmarkWhich(b *testing.B) {
	for _, engine := range stack.Engines() {
		w := newWhich(b, engine)
		for _, lock := range []struct {
			name   string
			change func(ctx context.Context, row int) error
		}{
			{"lease", w.lease}, {"lease and Once", w.once}, {"sharded", w.sharded}, {"RowLock", w.row}, {"NamedLock", w.named}, {"Versioned", w.versioned}, {"segments", w.segment},
		} {
			for _, load := range []struct {
				name          string
				workers, rows int
			}{{"1 worker", 1, 1}, {"16 workers, 16 rows", 16, 16}, {"16 workers, 1 row", 16, 1}} {
				b.Run(fmt.Sprintf("%s/%s/%s", engine, lock.name, load.name), func(b *testing.B) {
					var next atomic.Int64
					b.SetParallelism(max(1, load.workers/2)) // of two cores
					if load.workers == 1 {
						for b.Loop() {
							if err := lock.change(b.Context(), 0); err != nil {
								b.Fatal(err)
							}
						}
						return
					}
					b.RunParallel(func(pb *testing.PB) {
						row := int(next.Add(1)) % load.rows
						for pb.Next() {
							if err := lock.change(b.Context(), row); err != nil {
								b.Error(err)
								return
							}
						}
					})
				})
			}
		}
	}
}

// which has a row for each worker, and every lock for it.
type which struct {
	db       *sql.DB
	locker   *tier.Locker
	spread   *tier.Locker
	guard    *idempotency.Guard
	rows     *mysqlauth.RowLock
	names    *mysqlauth.NamedLocks
	versions *idempotency.Versioned
	requests atomic.Int64
}

const whichRows = 16

func newWhich(b *testing.B, engine stack.Engine) *which {
	b.Helper()
	s, second := tiers.New(b, engine), tiers.New(b, engine)
	s.Exec(b, "CREATE TABLE item (id VARCHAR(20) PRIMARY KEY, n INT NOT NULL, version BIGINT NOT NULL)")
	for i := range whichRows {
		for part := range whichRows {
			s.Exec(b, "INSERT IGNORE INTO item VALUES (?, 0, 0), (?, 0, 0)", itemOf(i), itemOf(i)+fmt.Sprintf("-%d", part))
		}
	}
	w := &which{}
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	check(idempotency.EnsureSchema(b.Context(), s.Admin))
	var err error
	w.db, err = sql.Open("mysql", tiers.WithParameters(s.Database.DSN(), "interpolateParams=true"))
	check(err)
	b.Cleanup(func() { _ = w.db.Close() })
	w.db.SetMaxIdleConns(64)
	options := []tier.Option{tier.WithWait(time.Minute), tier.WithTTL(time.Minute)}
	// No proxies between: they cost as much as a server does.
	authority := func(of *tiers.Tiers) *mysqlauth.Authority {
		a, err := mysqlauth.Open(of.Database.DSN(), mysqlauth.WithSweepInterval(0))
		check(err)
		return a
	}
	filter := func() *redisfast.Filter {
		f, err := redisfast.Open(s.Redis.URL(), redisfast.WithPrefix(s.Prefix))
		check(err)
		return f
	}
	w.locker, err = tier.New(filter(), authority(s), options...)
	check(err)
	second.Exec(b, fmt.Sprintf("GRANT SELECT, UPDATE ON %s.lease TO %s@'%%'", second.Database.Name, s.Database.User()))
	sharded, err := mysqlauth.NewSharded(mysqlauth.Shard{Name: "a", Authority: authority(s)}, mysqlauth.Shard{Name: "b", Authority: authority(second)})
	check(err)
	w.spread, err = tier.New(filter(), sharded, append(options, tier.WithNamespace("spread"))...)
	check(err)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = errors.Join(w.locker.Close(ctx), w.spread.Close(ctx))
	})
	w.guard, err = idempotency.New(w.db)
	check(err)
	b.Cleanup(func() { _ = w.guard.Close(context.Background()) })
	w.rows, err = mysqlauth.NewRowLock(b.Context(), w.db)
	check(err)
	for i := range whichRows {
		check(w.rows.Prepare(b.Context(), itemOf(i)))
	}
	w.names, err = mysqlauth.NewNamedLocks(w.db)
	check(err)
	w.versions, err = idempotency.NewVersioned(w.db, "item", "id", "version", idempotency.WithAttempts(100))
	check(err)
	return w
}

func itemOf(row int) string { return fmt.Sprintf("item-%d", row) }

const addOne = "UPDATE item SET n = n + 1 WHERE id = ?"

func (w *which) in(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (w *which) lease(ctx context.Context, row int) error { return w.under(ctx, w.locker, row) }

func (w *which) under(ctx context.Context, l *tier.Locker, row int) error {
	return l.Do(ctx, itemOf(row), func(ctx context.Context, lease *tier.Lease) error { return w.confirmed(ctx, lease, itemOf(row)) })
}

func (w *which) confirmed(ctx context.Context, lease *tier.Lease, item string) error {
	return w.in(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, addOne, item); err != nil {
			return err
		}
		return idempotency.ConfirmTx(ctx, tx, lease)
	})
}

func (w *which) sharded(ctx context.Context, row int) error { return w.under(ctx, w.spread, row) }

func (w *which) once(ctx context.Context, row int) error {
	request := idempotency.Request{Key: fmt.Sprint(w.requests.Add(1)), Fingerprint: []byte("add one")}
	return w.locker.Do(ctx, itemOf(row), func(ctx context.Context, lease *tier.Lease) error {
		_, err := w.guard.Once(ctx, lease, request, func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			_, err := tx.ExecContext(ctx, addOne, itemOf(row))
			return nil, err
		})
		return err
	})
}

func (w *which) row(ctx context.Context, row int) error {
	return w.in(ctx, func(tx *sql.Tx) error {
		if err := w.rows.Lock(ctx, tx, itemOf(row)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, addOne, itemOf(row))
		return err
	})
}

func (w *which) named(ctx context.Context, row int) error {
	lock, err := w.names.Acquire(ctx, itemOf(row))
	if err != nil {
		return err
	}
	err = w.in(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, addOne, itemOf(row))
		return err
	})
	return errors.Join(err, lock.Release(ctx))
}

func (w *which) versioned(ctx context.Context, row int) error {
	return w.versions.Update(ctx, itemOf(row), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, addOne, itemOf(row))
		return err
	})
}

func (w *which) segment(ctx context.Context, row int) error {
	lease, err := w.locker.AcquireAny(ctx, tier.Segments(itemOf(row), whichRows)...)
	if err != nil {
		return err
	}
	err = w.confirmed(ctx, lease, strings.Replace(lease.Key(), "#", "-", 1)) // the row of the piece
	return errors.Join(err, lease.Release(ctx))
}
