// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
)

// Many processes prepare the same rows at once; held ones are left alone.
func TestPrepare_atOnceFromMany(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		var keys []string
		for i := range 700 { // two batches
			keys = append(keys, fmt.Sprintf("ns/k%d", i))
		}
		keys = append(keys, keys[0])
		first := open(t, d.DSN(), WithTimeout(busyLimit))
		g := mustClaim(t, first, claimOf("ns/k5"))
		var wg sync.WaitGroup
		for range 3 {
			a := open(t, d.DSN(), WithTimeout(busyLimit))
			wg.Go(func() {
				if err := a.Prepare(t.Context(), keys...); err != nil {
					t.Errorf("Prepare: %v", err)
				}
			})
		}
		wg.Wait()
		var rows int
		if err := openAdmin(t, d).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lease").Scan(&rows); err != nil || rows != 700 {
			t.Errorf("%d rows, want 700, %v", rows, err)
		}
		mustRelease(t, first, "ns/k5", g)
		next := mustClaim(t, first, claimOf("ns/k6"))
		mustRelease(t, first, "ns/k6", next)
		if err := first.Prepare(t.Context()); err != nil {
			t.Errorf("Prepare of nothing: %v", err)
		}
	})
}

// Processes that start together make the tables together.
func TestEnsureSchema_atOnceFromMany(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			d := stack.SharedSQL(t, engine).CreateDatabase(t)
			var wg sync.WaitGroup
			for range 8 {
				db := openAdmin(t, d)
				wg.Go(func() {
					if err := EnsureSchema(t.Context(), db); err != nil {
						t.Errorf("EnsureSchema: %v", err)
					}
				})
			}
			wg.Wait()
			if err := open(t, d.DSN(), WithTimeout(busyLimit)).Check(t.Context()); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
	}
}
