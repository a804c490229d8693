// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// Policies are replaced all the time under load: what is held keeps its terms, who
// waits takes the new ones.
func TestReload_underLoad(t *testing.T) {
	t.Parallel()
	reloads := 100
	if soak {
		reloads = 1000
	}
	s := tiers.New(t, stack.MariaDB)
	named := func(i int) []tier.Policy {
		return []tier.Policy{{Match: "**", Options: []tier.AcquireOption{tier.WithHolder(fmt.Sprintf("reload %d", i))}}}
	}
	m := join(t, s, tier.WithPolicies(named(0)...))
	held := m.must(t, "held", tier.LevelFull)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var crew sync.WaitGroup
	for i := range 64 {
		crew.Go(func() {
			for rng := nodeRand(i); ctx.Err() == nil; {
				lease, err := m.Acquire(ctx, fmt.Sprintf("k/%d", rng.IntN(32)))
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, tier.ErrHeld) {
						t.Error(err)
					}
					continue
				}
				if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
		})
	}
	waiter := make(chan *tier.Lease, 1)
	go func() {
		lease, err := m.Acquire(t.Context(), "held", tier.WithWait(5*time.Minute))
		if err != nil {
			t.Error(err)
		}
		waiter <- lease
	}()
	for i := 1; i <= reloads; i++ {
		noError(t, m.SetPolicies(named(i)...))
		time.Sleep(2 * time.Millisecond)
	}
	if held.Holder() != "reload 0" || held.Err() != nil {
		t.Errorf("a held lease: holder %q, %v", held.Holder(), held.Err())
	}
	released(t, held)
	next := <-waiter
	if want := fmt.Sprintf("reload %d", reloads); next == nil || next.Holder() != want {
		t.Errorf("who waited through all reloads: %v, want holder %q", next, want)
	} else {
		released(t, next)
	}
	stop()
	crew.Wait()
}
