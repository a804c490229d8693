// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// TestWait_redisAnswersErrors_G5 waits on a Redis that answers everything with
// an error: neither it nor MySQL is asked more than a few times a second,
// however many wait.
func TestWait_redisAnswersErrors_G5(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"loading":   "LOADING Redis is loading the dataset in memory",
		"read_only": "READONLY You can't write against a read only replica.",
		"no_memory": "OOM command not allowed when used memory > 'maxmemory'.",
		"cluster":   "CLUSTERDOWN The cluster is down",
		"no_rights": "NOPERM this user has no permissions to run the 'evalsha' command",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, stack.MariaDB)
			holder, node := s.Node(t), s.Node(t)
			held, err := open(t, holder).Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			l := open(t, node)
			node.ToRedis.OnRequest(func(stack.Request) stack.Action { return stack.RedisError(text) })
			node.ToRedis.Mark()
			node.ToMySQL.Mark()
			const wait = 4 * time.Second
			start := time.Now()
			var waiting sync.WaitGroup
			for range 50 {
				waiting.Go(func() {
					if _, err := l.Acquire(t.Context(), "k", tier.WithWait(wait)); !errors.Is(err, tier.ErrHeld) {
						t.Errorf("acquire: %v, want ErrHeld", err)
					}
				})
			}
			waiting.Wait()
			seconds := time.Since(start).Seconds()
			redisRate, mysqlRate := float64(node.ToRedis.Requests())/seconds, float64(node.ToMySQL.Requests())/seconds
			t.Logf("%.1f requests a second to Redis, %.1f to MySQL, %d dials", redisRate, mysqlRate, node.ToRedis.Dials())
			// The setting up of connections, the breaker's probes, and what an
			// unanswered mark is cleared with count too.
			if redisRate > 100 {
				t.Errorf("%.1f requests a second to Redis, at most 100", redisRate)
			}
			if mysqlRate > 15 {
				t.Errorf("%.1f requests a second to MySQL, at most 15", mysqlRate)
			}
			node.ToRedis.OnRequest(nil)
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
