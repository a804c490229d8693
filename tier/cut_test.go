// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// TestAcquire_cut_B6_J7 cuts claims off from their answers in every way a
// network has: the claim never arrives, arrives and is not answered, or arrives
// when its caller has given up. No two are granted the key, and nothing is left
// that another would have to wait a TTL for.
func TestAcquire_cut_B6_J7(t *testing.T) {
	trials := 96
	if soak {
		trials = 1000
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			n, other := s.Node(t), s.Node(t)
			l, peer := open(t, n), open(t, other)

			// Rows for half of the keys: their claims are granted by the first
			// statement, the others' by the second.
			var rows []string
			for i := 0; i <= trials; i += 2 {
				rows = append(rows, fmt.Sprintf("('default/k%d', 1, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", i))
			}
			s.Exec(t, "INSERT INTO lease (lock_key, fence, holder, acquired_at, expires_at) VALUES "+strings.Join(rows, ","))

			// Of eight claims five are cut, each in another way.
			var claims atomic.Int64
			var ways [8]atomic.Int64
			var way sync.Map // text of a claim -> how it is cut
			n.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
				if !isClaim(r) {
					return stack.Pass
				}
				w := rand.IntN(len(ways))
				claims.Add(1)
				ways[w].Add(1)
				way.Store(string(r.Raw), w)
				switch w {
				case 0: // never arrives
					return stack.HangUp
				case 1: // arrives after its caller has gone, past its time
					arrives := make(chan struct{})
					time.AfterFunc(700*time.Millisecond, func() { close(arrives) })
					return stack.HoldUntil(arrives)
				case 2: // never arrives, and nothing says so
					return stack.Swallow
				}
				return stack.Pass
			})
			n.ToMySQL.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
				switch w, _ := way.Load(string(r.Raw)); w {
				case 3: // executed, and the connection breaks
					return stack.HangUp
				case 4: // executed, and nothing is heard of it
					return stack.Swallow
				}
				return stack.Pass
			})

			var granted atomic.Int64
			var next atomic.Int64
			var workers sync.WaitGroup
			for range 6 {
				workers.Go(func() {
					for i := next.Add(1); i <= int64(trials); i = next.Add(1) {
						key := fmt.Sprintf("k%d", i)
						lease, err := l.Acquire(t.Context(), key, tier.WithWait(2*time.Second))
						if err == nil {
							granted.Add(1)
							if _, err := peer.TryAcquire(t.Context(), key); !errors.Is(err, tier.ErrHeld) {
								t.Errorf("%s is ours, and another process got %v", key, err)
							}
							if err := lease.Release(t.Context()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("release: %v", err)
							}
						} else if !errors.Is(err, tier.ErrUnavailable) && !errors.Is(err, tier.ErrHeld) {
							t.Errorf("%s: %v", key, err)
						}
						start := time.Now()
						next, err := peer.Acquire(t.Context(), key, tier.WithWait(20*time.Second))
						if err != nil {
							t.Errorf("%s, another process: %v", key, err)
							continue
						}
						// P5 for a row that may be new, on a machine that is busy; the TTL is
						// a minute.
						if took := time.Since(start); took > 5*time.Second {
							t.Errorf("%s was free for another process after %v", key, took)
						}
						if err := next.Release(t.Context()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
			workers.Wait()
			t.Logf("%d of %d granted, %d claims sent, %d of them executed without an answer",
				granted.Load(), trials, claims.Load(), ways[3].Load()+ways[4].Load())
			for w := range 5 {
				if ways[w].Load() == 0 {
					t.Errorf("no claim was cut in way %d", w)
				}
			}
			n.ToMySQL.OnRequest(nil)
			n.ToMySQL.OnReply(nil)
			// The settler's second look comes a second and a half after the first.
			end := time.Now().Add(5 * time.Second)
			for s.Held(t)+s.Marks(t) > 0 && time.Now().Before(end) {
				time.Sleep(50 * time.Millisecond)
			}
			if held, marks := s.Held(t), s.Marks(t); held+marks > 0 {
				t.Errorf("%d rows held, %d marks", held, marks)
			}
		})
	}
}

// open makes the locker of a node.
func open(t *testing.T, n tiers.Node, options ...tier.Option) *tier.Locker {
	t.Helper()
	l, err := tier.New(n.Filter, n.Authority, append([]tier.Option{tier.WithTTL(time.Minute)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}
