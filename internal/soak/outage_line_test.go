// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// waiter acquires behind the test.
type waiter struct {
	lease *tier.Lease
	err   error
	at    time.Time
	done  chan struct{}
}

func (m *member) waits(t *testing.T, key string, options ...tier.AcquireOption) *waiter {
	w := &waiter{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = m.Acquire(t.Context(), key, options...)
		w.at = time.Now()
	}()
	return w
}

func (w *waiter) waitsStill(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("granted although another lease of the process lives: %v, %v", w.lease, w.err)
	case <-time.After(d):
	}
}

func (w *waiter) granted(t *testing.T, want tier.Level, within time.Duration) *tier.Lease {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(within):
		t.Fatalf("not granted within %v", within)
	}
	noError(t, w.err)
	if w.lease.Level() != want {
		t.Errorf("granted at level %s, want %s", w.lease.Level(), want)
	}
	return w.lease
}

// One line per key: a fenced acquire waits for the local tenure of its process.
func TestOutage_fencedWaitsForLocal(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			m := join(t, s, soonOut())
			m.ToMySQL.Cut()
			m.opens(t, "inventory/1")
			lease := m.must(t, "inventory/1", tier.LevelLocal)
			next := m.waits(t, "inventory/1", tier.WithWait(time.Minute))
			noError(t, m.ToMySQL.Heal())
			m.settles(t, "inventory/other", tier.LevelFull, 2*time.Second+leeway)
			until(t, 10*time.Second, "the local lease is promoted", func() bool { return isTaken(t, s, "inventory/1") })
			next.waitsStill(t, 500*time.Millisecond)
			noError(t, lease.Err())
			released(t, lease)
			released(t, next.granted(t, tier.LevelFull, time.Second+leeway))
		})
	}
}

// And the other way round: a local one waits for a fenced tenure of its process,
// until it is released or its deadline is past. What the release could not tell
// MySQL does not end the local lease when MySQL is back.
func TestOutage_localWaitsForFenced(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		for _, end := range []string{"released", "expired"} {
			t.Run(engine.String()+"/"+end, func(t *testing.T) {
				t.Parallel()
				s := tiers.New(t, engine)
				ttl := 4 * time.Second
				if end == "released" {
					ttl = 20 * time.Second // it must not expire meanwhile
				}
				m := join(t, s, soonOut(), tier.WithTTL(ttl))
				lease := m.must(t, "inventory/1", tier.LevelFull)
				reserved := s.Count(t, "SELECT fence FROM lease WHERE lock_key = ?", soakNamespace+"/inventory/1")
				m.ToMySQL.Cut()
				m.opens(t, "inventory/other")
				s.Flush(t) // what keeps them apart is the line, not a mark
				next := m.waits(t, "inventory/1", tier.WithWait(time.Minute))
				if end == "released" {
					next.waitsStill(t, 300*time.Millisecond)
					noError(t, lease.Err())
					if err := lease.Release(t.Context()); err == nil {
						t.Error("a release that MySQL cannot have heard of answers nil")
					}
					local := next.granted(t, tier.LevelLocal, time.Second+leeway)
					// That release arrives when the promotion was refused for it, and asks again.
					var claims atomic.Int64
					refused := make(chan struct{})
					m.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
						switch {
						case r.Has("token = NULL"):
							return stack.HoldUntil(refused)
						case isClaim(r) && r.Holds([]byte("inventory/1")) && claims.Add(1) == 2:
							close(refused)
						}
						return stack.Pass
					})
					noError(t, m.ToMySQL.Heal())
					until(t, 10*time.Second, "the local lease is promoted, its predecessor's row is freed", func() bool {
						if err := local.Err(); err != nil {
							t.Fatalf("the local lease ended although nobody else has the key: %v", err)
						}
						return s.Count(t, "SELECT COUNT(*) FROM lease WHERE lock_key = ? AND token IS NOT NULL AND fence > ?",
							soakNamespace+"/inventory/1", reserved) == 1
					})
					noError(t, local.Verify(t.Context()))
					released(t, local)
					released(t, m.must(t, "inventory/1", tier.LevelFull))
					return
				}
				select {
				case <-next.done:
					t.Fatalf("granted before the deadline of the fenced lease: %v, %v", next.lease, next.err)
				case <-lease.Context().Done():
				}
				lost := time.Now()
				if cause := context.Cause(lease.Context()); !errors.Is(cause, tier.ErrLost) {
					t.Errorf("the fenced lease ended with %v, want ErrLost", cause)
				}
				if !lost.Before(lease.Deadline().Add(time.Second)) {
					t.Errorf("it ended %v past its deadline", lost.Sub(lease.Deadline()))
				}
				local := next.granted(t, tier.LevelLocal, time.Second+leeway)
				if next.at.Before(lease.Deadline()) {
					t.Errorf("the next was granted %v before the deadline", lease.Deadline().Sub(next.at))
				}
				released(t, local)
				noError(t, m.ToMySQL.Heal())
				_ = lease.Release(t.Context()) // lost, freed or expired: all are known by now
				m.settles(t, "inventory/1", tier.LevelFull, 4*time.Second+leeway)
			})
		}
	}
}
