// SPDX-License-Identifier: Apache-2.0

package soak

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
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
)

// TestWipe_leaseTable empties the lease table under its users, drops it, and
// makes it anew (faults.md E12). Fences rise all the same; callers are told that
// the table is missing and where, or that what they held is lost; nobody hangs;
// and they go on without a restart.
func TestWipe_leaseTable(t *testing.T) {
	rounds := 1
	if soak {
		rounds = 50
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			w := newWipe(t, engine)
			for range rounds {
				w.tiers.Exec(t, "TRUNCATE lease")
				w.everybodyWorks(t, "after TRUNCATE")
				w.tiers.Exec(t, "DROP TABLE lease")
				w.until(t, "callers learn that the table is missing", func() bool { return w.refused.Swap(0) > 0 })
				if err := mysqlauth.EnsureSchema(t.Context(), w.tiers.Admin); err != nil {
					t.Fatal(err)
				}
				w.everybodyWorks(t, "after DROP and EnsureSchema")
			}
			t.Logf("%d rounds: %d tenures, %d calls told that the table is missing, %d leases lost, %d answers unknown, the slowest call took %v",
				rounds, w.tenures.Load(), w.missing.Load(), w.lost.Load(), w.unknown.Load(), time.Duration(w.slowest.Load()).Round(time.Millisecond))
			if w.lost.Load() == 0 {
				t.Error("nobody lost a lease: nothing was held when the table went")
			}
		})
	}
}

const (
	wipeKeys = 8
	wipeWait = 2 * time.Second
)

// wipe is the table and those who use it.
type wipe struct {
	tiers  *tiers.Tiers
	fences *fences

	tenures, missing, lost, unknown, slowest atomic.Int64

	refused atomic.Int64 // missing since somebody looked

	mu   sync.Mutex
	seen map[string]struct{} // process and key, granted since everybodyWorks began
}

func newWipe(t *testing.T, engine stack.Engine) *wipe {
	t.Helper()
	w := &wipe{
		tiers:  tiers.New(t, engine),
		fences: newFences(func(string) uint64 { return 0 }),
		seen:   make(map[string]struct{}),
	}
	working, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var lockers []*tier.Locker
	for process := range 2 {
		node := w.tiers.NodeWith(t, "")
		locker, err := tier.New(node.Filter, node.Authority, tier.WithNamespace("wipe"),
			tier.WithTTL(time.Second), tier.WithWait(wipeWait))
		if err != nil {
			t.Fatal(err)
		}
		lockers = append(lockers, locker)
		for range wipeKeys {
			running.Go(func() {
				for working.Err() == nil {
					w.turn(t, locker, process, fmt.Sprintf("k%d", rand.IntN(wipeKeys)))
				}
			})
		}
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		for _, locker := range lockers {
			closeLocker(t, locker)
		}
	})
	return w
}

// turn is one tenure, now and then long enough to be renewed.
func (w *wipe) turn(t *testing.T, locker *tier.Locker, process int, key string) {
	before := w.fences.before(key)
	began := time.Now()
	lease, err := locker.Acquire(context.Background(), key)
	w.took(t, "acquire", time.Since(began))
	if err != nil {
		w.explained(t, "acquire", err)
		time.Sleep(20 * time.Millisecond) // the refusal of an open breaker costs nothing
		return
	}
	w.fences.granted(t, key, before, lease.Fence())
	w.tenures.Add(1)
	w.mu.Lock()
	w.seen[fmt.Sprint(process, key)] = struct{}{}
	w.mu.Unlock()
	if rand.IntN(3) == 0 {
		select {
		case <-lease.Done():
			w.explained(t, "hold", context.Cause(lease.Context()))
		case <-time.After(time.Duration(rand.IntN(600)) * time.Millisecond):
		}
	}
	began = time.Now()
	err = lease.Release(context.Background())
	w.took(t, "release", time.Since(began))
	if err != nil {
		w.explained(t, "release", err)
	}
}

func (w *wipe) took(t *testing.T, op string, d time.Duration) {
	for {
		slowest := w.slowest.Load()
		if int64(d) <= slowest || w.slowest.CompareAndSwap(slowest, int64(d)) {
			break
		}
	}
	if d > wipeWait+5*time.Second {
		t.Errorf("%s took %v", op, d)
	}
}

// explained sorts the errors that a caller may get.
func (w *wipe) explained(t *testing.T, op string, err error) {
	switch {
	case errors.Is(err, tier.ErrLost):
		w.lost.Add(1)
	case errors.Is(err, tier.ErrHeld): // the wait ended
	case op == "release" && errors.Is(err, context.DeadlineExceeded):
		w.unknown.Add(1) // it goes on behind
	case errors.Is(err, tier.ErrUnavailable) &&
		strings.Contains(err.Error(), w.tiers.Database.Name+".lease") && strings.Contains(err.Error(), "EnsureSchema"):
		w.missing.Add(1)
		w.refused.Add(1)
	case errors.Is(err, tier.ErrUnavailable) && strings.Contains(err.Error(), "breaker: probe has not answered in time"):
		w.unknown.Add(1) // DDL on a slow machine holds up the breaker's probe as well
	default:
		t.Errorf("%s: %v", op, err)
	}
}

// everybodyWorks waits until each process was granted each key.
func (w *wipe) everybodyWorks(t *testing.T, when string) {
	t.Helper()
	w.mu.Lock()
	clear(w.seen)
	w.mu.Unlock()
	w.until(t, when+" both processes are granted all keys", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.seen) == 2*wipeKeys
	})
	w.refused.Store(0)
}

func (w *wipe) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within 30s: %s", what)
		}
	}
}
