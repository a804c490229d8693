// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// A process that starts in an outage has the rungs of one that was there before:
// nobody asks the start-up questions first, and no answer of theirs is needed for
// a local lease. It asks them when MySQL is back.
func TestOutage_coldStart(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		for name, out := range map[string]func(*stack.Proxy){"gone": (*stack.Proxy).Cut, "black hole": (*stack.Proxy).BlackHole} {
			t.Run(engine.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := tiers.New(t, engine)
				m := &member{Node: s.Node(t)}
				out(m.ToMySQL)
				var err error
				m.Locker, err = tier.New(m.Filter, m.Authority, tier.WithNamespace(soakNamespace), tier.WithPolicies(twoPolicies...),
					tier.WithWait(2*time.Second), soonOut())
				noError(t, err)
				t.Cleanup(func() { noError(t, closeNode(m.Locker)) })

				began := time.Now()
				lease, err := m.Acquire(t.Context(), "inventory/1")
				for ; errors.Is(err, tier.ErrUnavailable) && time.Since(began) < 10*time.Second; lease, err = m.Acquire(t.Context(), "inventory/1") {
				}
				noError(t, err)
				if lease.Level() != tier.LevelLocal {
					t.Fatalf("granted at level %s, want local", lease.Level())
				}
				t.Logf("local %v after the start", time.Since(began).Round(time.Millisecond))
				if took := time.Since(began); took > 2*time.Second+leeway {
					t.Errorf("it took %v until two failures opened the breaker", took)
				}
				if _, err := m.TryAcquire(t.Context(), "payment/1"); !errors.Is(err, tier.ErrUnavailable) || m.Rung("payment/1") != fallback.FailClosed {
					t.Errorf("payment: %v on rung %v, want ErrUnavailable on fail_closed", err, m.Rung("payment/1"))
				}
				noError(t, m.ToMySQL.Heal())
				m.settles(t, "payment/1", tier.LevelFull, 2*time.Second+leeway)
				until(t, 10*time.Second, "what was held locally is promoted", func() bool { return isTaken(t, s, "inventory/1") })
				released(t, lease)
			})
		}
	}
}
