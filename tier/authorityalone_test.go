// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// Who waits under a policy of MySQL alone asks Redis for nothing, not for news
// either, and is granted the key all the same.
func TestTiers_authorityAloneHearsNothing(t *testing.T) {
	alone := tier.WithPolicies(tier.Policy{Match: "mysql/**", Tiers: tier.TiersAuthority})
	for name, acquire := range map[string]func(*testing.T, *rig) (*tier.Lease, error){
		"acquire": func(t *testing.T, r *rig) (*tier.Lease, error) { return r.Acquire(t.Context(), "mysql/1") },
		"any": func(t *testing.T, r *rig) (*tier.Lease, error) {
			return r.AcquireAny(t.Context(), "mysql/1", "mysql/2")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, alone)
				other := r.peer(t, alone)
				theirs := []*tier.Lease{other.must(t, "mysql/1"), other.must(t, "mysql/2")}
				time.Sleep(time.Second) // the start-up questions
				got := make(chan *tier.Lease)
				go func() {
					lease, err := acquire(t, r)
					if err != nil {
						t.Error(err)
					}
					got <- lease
				}()
				time.Sleep(time.Second)
				for _, lease := range theirs {
					other.release(t, lease)
				}
				lease := <-got
				if lease == nil {
					return
				}
				mustLevel(t, lease, tier.LevelAuthority)
				r.release(t, lease)
				for _, op := range []string{"mark", "extend", "overwrite", "refresh", "clear", "wakeups"} {
					if n := r.calls.count(op) + other.calls.count(op); n != 0 {
						t.Errorf("%d times %s, want none", n, op)
					}
				}
			})
		})
	}
}
