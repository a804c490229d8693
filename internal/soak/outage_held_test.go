// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// Five claims fail in a row and the breaker opens; renewals and releases pass it,
// and what is held stays held.
func TestOutage_fiveFailedClaims(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			const held = 100
			s := tiers.New(t, engine)
			m := join(t, s, tier.WithTTL(2*time.Second), tier.WithPolicies(tier.Policy{
				Match: "payment/**", Attempts: 4, Backoff: 5 * time.Millisecond,
			}))
			var keys []string
			for i := range held {
				keys = append(keys, fmt.Sprintf("payment/%d", i))
			}
			leases, err := m.AcquireAll(t.Context(), keys...)
			noError(t, err)

			var claims, renewals atomic.Int64
			m.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
				switch {
				case isClaim(r):
					claims.Add(1)
				case isProbe(r) && r.Has("canary"):
				case r.Has("l.expires_at = IF("):
					renewals.Add(1)
					return stack.Pass
				default:
					return stack.Pass
				}
				return stack.SQLError(1047, "WSREP has not yet prepared node for application use")
			})
			if _, err := m.Acquire(t.Context(), "payment/new"); err == nil || m.Rung("payment/new") != fallback.FailClosed {
				t.Fatalf("after %d failed claims (%v) the rung is %v, want fail_closed", claims.Load(), err, m.Rung("payment/new"))
			}
			if n := claims.Load(); n != 5 {
				t.Errorf("%d claims failed, want five: they are what opens the breaker", n)
			}
			began := time.Now()
			until(t, 10*time.Second, "renewals for more than two TTLs", func() bool {
				if _, err := m.TryAcquire(t.Context(), "payment/new"); err == nil {
					t.Error("granted while partial is open")
				}
				return time.Since(began) > 5*time.Second && renewals.Load() >= 5
			})
			for _, lease := range leases {
				if err := lease.Err(); err != nil {
					t.Errorf("%q: %v", lease.Key(), err)
				}
			}
			noError(t, leases[0].Renew(t.Context()))
			noError(t, leases[1].Verify(t.Context()))
			noError(t, leases.Release(t.Context()))
			if n := s.Held(t); n != 0 {
				t.Errorf("%d rows are held after their release", n)
			}
			if n := claims.Load(); n != 5 {
				t.Errorf("%d claims, five before the breaker opened", n)
			}
			m.ToMySQL.OnRequest(nil)
			m.settles(t, "payment/new", tier.LevelFull, 2*time.Second+leeway)
		})
	}
}

// A connection breaks under a statement that carries the claims of a crowd: one
// failure, and no outage. It runs alone: that nothing else fails is the point.
func TestOutage_brokenConnectionIsOneFailure(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		logger, log := logged()
		m := join(t, s, logger, tier.WithWait(20*time.Second), tier.WithBreaker(breaker.Settings{Consecutive: 2}))
		keys := make([]string, 256)
		for i := range keys {
			keys[i] = fmt.Sprintf("payment/%d", i)
		}
		all, err := m.AcquireAll(t.Context(), keys...) // rows that are there are claimed by one statement
		noError(t, err)
		noError(t, all.Release(t.Context()))

		m.ToMySQL.Delay(50*time.Millisecond, 0) // what comes meanwhile goes in the next
		carried := func(r stack.Request) int { return bytes.Count(r.Raw, []byte("payment/")) }
		broken := m.ToMySQL.LoseReply(1, func(r stack.Request) bool { return isClaim(r) && carried(r) >= 100 }, stack.HangUp)
		var crew sync.WaitGroup
		for _, key := range keys {
			crew.Go(func() {
				lease, err := m.Acquire(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				released(t, lease)
			})
		}
		crew.Wait()
		select {
		case r := <-broken:
			t.Logf("the reply to %d claims was lost", carried(r))
		default:
			t.Error("no reply was lost")
		}
		if out := log.FilterMessageSnippet("mysql is out"); out.Len() != 0 {
			t.Errorf("one broken connection opened a breaker that needs two failures: %v", out.All())
		}
	})
}
