// SPDX-License-Identifier: Apache-2.0

package tiertest_test

import (
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// TestReal keeps the promises on real servers, with the rights the
// documentation asks for and no more. Each node reaches both tiers through
// proxies of its own, whose black hole resets no connection, and speaks a
// dialect of its own (D1, D4, J8, J13).
func TestReal(t *testing.T) {
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			tiertest.Run(t, func(t *testing.T) tiertest.Harness { return newReal(t, engine) })
		})
	}
}

func newReal(t *testing.T, engine stack.Engine) tiertest.Harness {
	s := tiers.New(t, engine)
	return tiertest.Harness{
		Node: func(t *testing.T) tiertest.Node {
			n := s.Node(t)
			return tiertest.Node{
				Filter: n.Filter, Authority: n.Authority,
				SilenceFilter:    silence(t, n.ToRedis),
				SilenceAuthority: silence(t, n.ToMySQL),
			}
		},
		Flush:  func(t *testing.T) { s.Flush(t) },
		Held:   func(t *testing.T) int { return s.Held(t) },
		Marks:  func(t *testing.T) int { return s.Marks(t) },
		Revoke: func(t *testing.T) { s.Revoke(t) },
	}
}

func silence(t *testing.T, p *stack.Proxy) func() func() {
	return func() func() {
		p.BlackHole()
		return func() {
			if err := p.Heal(); err != nil {
				t.Errorf("heal: %v", err)
			}
		}
	}
}
