// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// TestAcquire_nestedPairs_F3_F4 holds one key while it asks for another, ten
// thousand times over 200 keys and always in one order: no two keys share
// anything that could close a circle or be freed in the other's place, and no
// key leaves anything behind.
func TestAcquire_nestedPairs_F3_F4(t *testing.T) {
	t.Parallel()
	const keys, workers, pairs = 200, 16, 10_000
	r := newRig(t, tier.WithTTL(time.Minute), tier.WithWait(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a deadlock ends the test by its own words
	defer cancel()
	var inside [keys]atomic.Int32
	enter := func(i int) *tier.Lease {
		lease, err := r.Acquire(ctx, fmt.Sprintf("k%d", i))
		if err != nil {
			t.Errorf("acquire k%d: %v", i, err)
			return nil
		}
		if n := inside[i].Add(1); n != 1 {
			t.Errorf("%d holders of k%d", n, i)
		}
		return lease
	}
	leave := func(i int, lease *tier.Lease) {
		inside[i].Add(-1)
		if err := lease.Release(ctx); err != nil {
			t.Errorf("release k%d: %v", i, err)
		}
	}
	var left atomic.Int64
	left.Store(pairs)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				i := rand.IntN(keys - 1)
				j := i + 1 + rand.IntN(keys-1-i)
				first := enter(i)
				if first == nil {
					return
				}
				second := enter(j)
				if second == nil {
					leave(i, first)
					return
				}
				// The one that came first goes first or last: neither takes the
				// other with it.
				if rand.IntN(2) == 0 {
					leave(i, first)
					if err := second.Err(); err != nil {
						t.Errorf("k%d ended with k%d: %v", j, i, err)
					}
					leave(j, second)
				} else {
					leave(j, second)
					if err := first.Err(); err != nil {
						t.Errorf("k%d ended with k%d: %v", i, j, err)
					}
					leave(i, first)
				}
			}
		})
	}
	all.Wait()
	closing, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if err := r.Close(closing); err != nil { // joins what clears marks behind the releases
		t.Errorf("close: %v", err)
	}
	if lines, held, due := r.Internals(); lines != 0 || held != 0 || due != 0 {
		t.Errorf("%d lines, %d leases, %d renewals left", lines, held, due)
	}
	r.clean(t)
}
