// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// BenchmarkOnce is what a guarded write costs beside the transaction that it
// guards, on one connection, with and without statements prepared at each call.
func BenchmarkOnce(b *testing.B) {
	for _, engine := range stack.Engines() {
		for _, parameters := range []string{"", "interpolateParams=true"} {
			s := tiers.New(b, engine)
			if err := idempotency.EnsureSchema(b.Context(), s.Admin); err != nil {
				b.Fatal(err)
			}
			s.Exec(b, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)")
			s.Exec(b, "INSERT INTO stock VALUES (1, 10)")
			n := s.Node(b)
			l, err := tier.New(n.Filter, n.Authority, tier.WithNamespace(namespace), tier.WithTTL(time.Minute), tier.WithMaxHold(time.Hour))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = l.Close(context.Background()) })
			db, err := sql.Open("mysql", tiers.WithParameters(s.Database.DSN(), parameters))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = db.Close() })
			g, err := idempotency.New(db, idempotency.WithNamespace(namespace))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = g.Close(context.Background()) })
			lease, err := l.Acquire(b.Context(), key)
			if err != nil {
				b.Fatal(err)
			}
			write := func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
				_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1 WHERE id = ?", 1)
				return nil, err
			}
			name := fmt.Sprintf("%s/%s", engine, parameters)
			i := 0
			b.Run(name+"/bare", func(b *testing.B) {
				for b.Loop() {
					tx, err := db.BeginTx(b.Context(), nil)
					if err == nil {
						_, err = write(b.Context(), tx)
					}
					if err == nil {
						err = tx.Commit()
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+"/first", func(b *testing.B) {
				for b.Loop() {
					i++
					if _, err := g.Once(b.Context(), lease, buy(fmt.Sprint("order-", i)), write); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+"/replay", func(b *testing.B) {
				for b.Loop() {
					if _, err := g.Once(b.Context(), lease, buy("order-1"), write); err != nil {
						b.Fatal(err)
					}
				}
			})
			if err := lease.Release(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
}
