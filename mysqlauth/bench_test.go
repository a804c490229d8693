// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// One lease of a key nobody else wants, from many goroutines.
func BenchmarkAuthority_pair(b *testing.B) {
	for _, engine := range stack.Engines() {
		for _, workers := range []int{16, 128} {
			b.Run(fmt.Sprintf("%s/%d", engine, workers*2), func(b *testing.B) {
				ctx := context.Background()
				d := stack.SharedSQL(b, engine).CreateDatabase(b)
				a, err := Open(d.DSN(), WithTimeout(busyLimit), WithSweepInterval(0))
				if err != nil {
					b.Fatal(err)
				}
				defer a.Close(ctx) //nolint:errcheck // all is released
				admin, err := sql.Open("mysql", d.AdminDSN())
				if err != nil {
					b.Fatal(err)
				}
				defer admin.Close() //nolint:errcheck // it made the tables
				if err := EnsureSchema(ctx, admin); err != nil {
					b.Fatal(err)
				}
				keys := make([]string, 10_000)
				for i := range keys {
					keys[i] = fmt.Sprintf("ns/k%d", i)
				}
				if err := a.Prepare(ctx, keys...); err != nil {
					b.Fatal(err)
				}
				var next atomic.Uint64
				b.SetParallelism(workers)
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						key := keys[next.Add(1)%uint64(len(keys))]
						g, err := a.Claim(ctx, claimOf(key))
						if err != nil {
							continue // the last round's is still being released
						}
						if err := a.Release(ctx, driver.Release{Key: key, Token: g.Token, Until: g.Until}); err != nil {
							b.Error(err)
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			})
		}
	}
}
