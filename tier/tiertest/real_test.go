// SPDX-License-Identifier: Apache-2.0

package tiertest_test

import (
	"context"
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
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

// TestReal_sharded keeps them with the keys spread over two databases.
func TestReal_sharded(t *testing.T) {
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			tiertest.Run(t, func(t *testing.T) tiertest.Harness { return newSharded(t, engine) })
		})
	}
}

func newSharded(t *testing.T, engine stack.Engine) tiertest.Harness {
	first, second := tiers.New(t, engine), tiers.New(t, engine)
	return tiertest.Harness{
		Node: func(t *testing.T) tiertest.Node {
			a, b := first.Node(t), second.Node(t)
			t.Cleanup(func() { _ = b.Filter.Close(context.Background()) }) // one is enough
			authority, err := mysqlauth.NewSharded(mysqlauth.Shard{Name: "a", Authority: a.Authority}, mysqlauth.Shard{Name: "b", Authority: b.Authority})
			if err != nil {
				t.Fatal(err)
			}
			silenceA, silenceB := silence(t, a.ToMySQL), silence(t, b.ToMySQL)
			return tiertest.Node{
				Filter: a.Filter, Authority: authority,
				SilenceFilter: silence(t, a.ToRedis),
				SilenceAuthority: func() func() {
					healA, healB := silenceA(), silenceB()
					return func() {
						healA()
						healB()
					}
				},
			}
		},
		Flush: func(t *testing.T) { first.Flush(t) },
		Held:  func(t *testing.T) int { return first.Held(t) + second.Held(t) },
		Marks: func(t *testing.T) int { return first.Marks(t) },
		Revoke: func(t *testing.T) {
			first.Revoke(t)
			second.Revoke(t)
		},
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
