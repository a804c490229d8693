// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// Redis comes back empty under a lease that is held: the lease stays, and its
// mark is back after a renewal by MySQL, and not without one.
func TestRedis_backEmpty_E3(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			redisServer := stack.StartRedis(t)
			s := tiers.On(t, redisServer, stack.SharedSQL(t, engine))
			n := s.Node(t)
			l, err := tier.New(n.Filter, n.Authority, tier.WithNamespace(soakNamespace), tier.WithTTL(6*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := closeNode(l); err != nil {
					t.Error(err)
				}
			}()
			lease, err := l.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := redisServer.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := redisServer.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if marks := s.Marks(t); marks != 0 {
				t.Fatalf("%d marks in a Redis that was killed and restarted", marks)
			}
			// A renewal whose answer is lost brings no mark back: none is there when
			// the next one is sent.
			renewal := stack.Having("GREATEST(l.expires_at")
			n.ToMySQL.LoseReply(1, renewal, stack.Swallow)
			select {
			case <-n.ToMySQL.LoseReply(1, renewal, stack.Swallow):
			case <-time.After(10 * time.Second):
				t.Fatal("no second renewal was sent")
			}
			if marks := s.Marks(t); marks != 0 {
				t.Error("a mark was planted although MySQL did not renew")
			}
			for end := time.Now().Add(10 * time.Second); s.Marks(t) == 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) || lease.Err() != nil {
					t.Fatalf("the mark is not back; the lease: %v", lease.Err())
				}
			}
			if err := lease.Verify(t.Context()); err != nil {
				t.Error(err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
