// SPDX-License-Identifier: Apache-2.0

package tiertest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/tiertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(stack.Main(m)) }

func TestMemory(t *testing.T) {
	tiertest.Run(t, func(*testing.T) tiertest.Harness {
		filter, authority := tiertest.NewFilter(), tiertest.NewAuthority()
		return tiertest.Harness{
			Node: func(*testing.T) tiertest.Node {
				f, a := filter.Join(), authority.Join()
				return tiertest.Node{
					Filter: f, Authority: a,
					SilenceFilter:    func() func() { f.Silence(); return f.Up },
					SilenceAuthority: func() func() { a.Silence(); return a.Up },
				}
			},
			Flush:  func(*testing.T) { filter.Flush() },
			Held:   func(*testing.T) int { return authority.Held() },
			Marks:  func(*testing.T) int { return filter.Marks() },
			Revoke: func(*testing.T) { authority.Revoke() },
		}
	})
}
