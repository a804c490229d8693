// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// What the server rolled back because of other transactions is repeated, and
// is a loss to nobody: faults J1, J2, C5.
func TestDeadlocks_areRepeated_J1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		number := 0
		key := func() string { number++; return fmt.Sprintf("ns/k%d", number) }
		for _, code := range []uint16{1213, 1205, 3572} {
			for times := 1; times <= retries+1; times++ {
				inject := func(part string) (done func()) {
					var left atomic.Int64
					left.Store(int64(times))
					p.OnRequest(func(r stack.Request) stack.Action {
						if r.Has(part) && left.Add(-1) >= 0 {
							return stack.SQLError(code, "try restarting transaction")
						}
						return stack.Pass
					})
					return func() {
						p.OnRequest(nil)
						if left.Load() > 0 {
							t.Errorf("%s: repeated too seldom: %d of %d left", part, left.Load(), times)
						}
					}
				}
				for _, part := range []string{"SET l.fence = ", "INSERT INTO `lease`"} {
					done := inject(part)
					_, err := a.Claim(t.Context(), claimOf(key()))
					done()
					if times <= retries && err != nil || times > retries && !isBusy(err) {
						t.Errorf("claim after %d errors %d of %s: %v", times, code, part, err)
					}
				}
				k := key()
				g := mustClaim(t, a, claimOf(k))
				done := inject("GREATEST(l.expires_at")
				got := renewOne(t, a, k, g, 10*time.Second)
				done()
				if times <= retries && got.Err != nil || times > retries && !isBusy(got.Err) {
					t.Errorf("renewal after %d errors %d: %v", times, code, got.Err)
				}
				done = inject("SET l.token = NULL")
				mustRelease(t, a, k, g) // goes on however often
				done()
			}
		}
		if _, err := a.Claim(t.Context(), claimOf("ns/k1")); err == nil || driver.ClassOf(err) != driver.ClassContention {
			t.Errorf("the first key was granted: %v", err)
		}
	})
}
