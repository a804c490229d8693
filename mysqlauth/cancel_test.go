// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

// Callers that leave at any instant leave nothing behind: faults B1, B7, B9,
// J7. Half of the keys are new, so that each statement is met.
func TestClaim_cancelledAtAnyInstant_leavesNothing_B1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, p := openAdmin(t, d), proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		mustClaim(t, a, claimOf("ns/warm")) // gives the order of magnitude
		began := time.Now()
		mustClaim(t, a, claimOf("ns/warm2"))
		typical := max(time.Since(began), 2*time.Millisecond)
		const workers, each = 16, 40
		var wg sync.WaitGroup
		granted := 0
		var mu sync.Mutex
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					key := fmt.Sprintf("ns/w%d-%d", w, i)
					if i%2 == 0 {
						key = fmt.Sprintf("ns/w%d", w)
					}
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*typical))
					g, err := a.Claim(ctx, claimOf(key))
					cancel()
					if err == nil {
						mu.Lock()
						granted++
						mu.Unlock()
						if err := a.Release(t.Context(), releaseOf(key, g)); err != nil {
							t.Errorf("Release: %v", err)
						}
					}
				}
			})
		}
		wg.Wait()
		within(t, 5*time.Second, "no row held", func() bool {
			var held int
			err := admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lease WHERE token IS NOT NULL AND lock_key LIKE 'ns/w%-%' OR token IS NOT NULL AND LENGTH(lock_key) < 7 AND lock_key <> 'ns/warm'").Scan(&held)
			return err == nil && held == 0
		})
		within(t, 5*time.Second, "no connection in use", func() bool { return a.db.Stats().InUse == 0 })
		t.Logf("%d of %d claims were granted in time", granted, workers*each)
		if n := p.Dials(); n > 50 {
			t.Errorf("%d connections were dialled: a caller's context broke some", n)
		}
	})
}
