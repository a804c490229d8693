// SPDX-License-Identifier: Apache-2.0

package tiertest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
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

// TestMemory_revokeLeavesFreeKeys: an operator takes leases away, not keys.
func TestMemory_revokeLeavesFreeKeys(t *testing.T) {
	authority := tiertest.NewAuthority()
	grant, err := authority.Claim(t.Context(), driver.Claim{Key: "k", TTL: time.Minute, Holder: "h", Block: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Release(t.Context(), driver.Release{Key: "k", Token: grant.Token, Until: grant.Until}); err != nil {
		t.Fatal(err)
	}
	authority.Revoke()
	if n := authority.Held(); n != 0 {
		t.Errorf("%d keys held", n)
	}
}

// TestFilter_loseReplies: the mark is planted, the caller is not told, and the
// filter undoes it.
func TestFilter_loseReplies(t *testing.T) {
	filter := tiertest.NewFilter()
	filter.LoseReplies(1)
	m := driver.Mark{Token: driver.NewToken(), TTL: time.Minute}
	if _, err := filter.Mark(t.Context(), "k", m); driver.ClassOf(err) != driver.ClassUnknown || err == nil {
		t.Errorf("%v, want an unknown outcome", err)
	}
	for end := time.Now().Add(5 * time.Second); filter.Marks() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the mark was not undone")
		}
	}
}

// forgetful is a test that does not release.
type forgetful struct {
	cleanups []func()
	failed   string
}

func (f *forgetful) Helper()                           {}
func (f *forgetful) Cleanup(c func())                  { f.cleanups = append(f.cleanups, c) }
func (f *forgetful) Fatalf(format string, args ...any) { f.failed = fmt.Sprintf(format, args...) }

func TestNewLocker_failsWhoForgetsToRelease(t *testing.T) {
	user := &forgetful{}
	locker := tiertest.NewLocker(user, tier.WithTTL(600*time.Millisecond))
	if _, err := locker.Acquire(t.Context(), "forgotten"); err != nil {
		t.Fatal(err)
	}
	user.cleanups[0]()
	if !strings.Contains(user.failed, "forgotten") {
		t.Errorf("the test was told %q", user.failed)
	}
}
