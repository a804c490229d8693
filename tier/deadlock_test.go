// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// TestLocker_rolledBack_J1 makes every statement of a lease the victim of other
// transactions, more often than the driver repeats it by itself: no caller hears
// of it, no lease is lost by it, and what was rolled back is there once.
func TestLocker_rolledBack_J1(t *testing.T) {
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			for name, answer := range map[string]stack.Action{
				"deadlock":        stack.SQLError(1213, "Deadlock found when trying to get lock"),
				"lock_wait":       stack.SQLError(1205, "Lock wait timeout exceeded"),
				"state_of_a_peer": stack.SQLStateError(8888, "40001", "rolled back"), // a number nobody listed
				"certification":   stack.SQLError(3101, "Plugin instructed the server to rollback"),
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s := tiers.New(t, engine)
					n := s.Node(t)
					l := open(t, n, tier.WithTTL(6*time.Second), tier.WithWait(30*time.Second))
					v := &victims{left: make(map[string]int)}
					n.ToMySQL.OnRequest(func(r stack.Request) stack.Action { return v.decide(r, answer) })
					defer n.ToMySQL.OnRequest(nil)

					v.next(t, "SET l.fence = ", "INSERT INTO") // a key never seen: both say something
					lease, err := l.Acquire(t.Context(), "k")
					if err != nil {
						t.Fatal(err)
					}
					v.next(t, "GREATEST(l.expires_at")
					if err := lease.Renew(t.Context()); err != nil {
						t.Errorf("renew: %v", err)
					}
					v.next(t, "GREATEST(l.expires_at")
					// The locker renews by itself.
					for at := lease.Deadline(); lease.Err() == nil && lease.Deadline().Equal(at); {
						time.Sleep(20 * time.Millisecond)
					}
					if err := lease.Err(); err != nil {
						t.Errorf("the lease: %v", err)
					}
					v.next(t, "SET l.token = NULL")
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
					v.next(t)
					if n := s.Held(t); n != 0 {
						t.Errorf("%d rows held", n)
					}
				})
			}
		})
	}
}

// victims are the statements that the server rolls back, by a part of their
// text, and how often it still does.
type victims struct {
	mu   sync.Mutex
	left map[string]int
}

// rolledBack is one more than the driver sends a statement before it tells the
// locker.
const rolledBack = 5

// next fails the test when the last ones were not sent as often as they were to
// be rolled back.
func (v *victims) next(t *testing.T, parts ...string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for part, n := range v.left {
		if n > 0 {
			t.Errorf("%q was repeated too seldom: %d left of %d", part, n, rolledBack)
		}
	}
	clear(v.left)
	for _, part := range parts {
		v.left[part] = rolledBack
	}
}

func (v *victims) decide(r stack.Request, answer stack.Action) stack.Action {
	if !strings.HasPrefix(r.Verb, "COM_STMT_EXECUTE") && r.Verb != "COM_QUERY" {
		return stack.Pass
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for part, n := range v.left {
		if n > 0 && r.Has(part) {
			v.left[part]--
			return answer
		}
	}
	return stack.Pass
}
