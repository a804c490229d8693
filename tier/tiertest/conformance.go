// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// Node is one process's pair of drivers, with outages of its own.
type Node struct {
	Filter    driver.Filter // nil: the authority alone
	Authority driver.Authority

	// SilenceFilter and SilenceAuthority let the node's requests vanish, as a
	// black hole does, until restore is called.
	SilenceFilter, SilenceAuthority func() (restore func())
}

// Harness lets the suite drive a pair of drivers.
type Harness struct {
	// Node returns drivers of a new process on the shared servers, with empty
	// servers for each test.
	Node func(t *testing.T) Node
	// Flush makes the filter forget everything.
	Flush func(t *testing.T)
	// Held and Marks count what is held on the authority and what stands in the
	// filter.
	Held, Marks func(t *testing.T) int
	// Revoke takes every lease away on the authority, as an operator would.
	Revoke func(t *testing.T)
}

// Run checks the promises that a pair of drivers and the composition keep
// together. newHarness is called once a promise.
//
// P3 needs a database that takes writes: it is checked with package
// idempotency.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, promise := range []struct {
		name  string
		check func(*testing.T, *cluster)
	}{
		{"P1_oneLeaseWhateverTheFilterDoes", checkExclusion},
		{"P2_fenceStrictlyIncreases", checkFence},
		{"P2_fenceSurvivesRenewal", checkFenceOfOneTenure},
		{"P4_lossBeforeTheNextGrant", checkEarlyLoss},
		{"P5_cancelledAcquiresLeakNothing", checkCancellation},
		{"P6_staleReleaseSparesTheSuccessor_C1_C9", checkStaleRelease},
		{"P6_staleRenewalRecreatesNothing_C12_J16", checkStaleRenewal},
		{"P9_staleMarkDelaysOneSecond_K11", checkStaleMark},
		{"P9_flaggedMarkIsRespected", checkFlaggedMark},
		{"P9_tryEverySecondGetsPast", checkStaleMarkByTrying},
		{"P10_silentAuthority_E8", checkSilentAuthority},
		{"P10_silentAuthorityForManyKeys", checkSilentAuthorityForMany},
		{"P10_silentFilter_I3", checkSilentFilter},
		{"P10_releaseAndClose_A9", checkSilentRelease},
		{"releaseWakesAWaiter_G9", checkHandOver},
		{"releaseWorksOnADeadContext_B5", checkDeadContext},
		{"contextOutlivesTheAcquire_A8", checkLongHold},
		{"filterOutStillLocks_E1", checkFilterOut},
		{"reentryByContext_F1_F2", checkReentry},
		{"reentryRacesWithTheLastRelease", checkReentryRace},
		{"doReleasesOnPanicAndGoexit", checkDo},
		{"maxHoldEndsTheContext", checkMaxHold},
		{"minHoldRunsAJobOnce", checkMinHold},
		{"maxWaitersAreTurnedAway", checkMaxWaiters},
		{"acquireAllNeverDeadlocks", checkAll},
		{"acquireAllIsAllOrNothing", checkAllOrNothing},
		{"acquireAnyTakesWhatIsFree", checkAny},
	} {
		t.Run(promise.name, func(t *testing.T) {
			t.Parallel()
			promise.check(t, &cluster{Harness: newHarness(t)})
		})
	}
}

// cluster is a harness with some lockers on it.
type cluster struct{ Harness }

// locker is a locker with its node's switches.
type locker struct {
	*tier.Locker
	Node
}

func (c *cluster) locker(t *testing.T, options ...tier.Option) locker {
	t.Helper()
	node := c.Node(t)
	l, err := tier.New(node.Filter, node.Authority, append([]tier.Option{tier.WithNamespace("suite")}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return locker{Locker: l, Node: node}
}

func mustAcquire(t *testing.T, l locker, key string, options ...tier.AcquireOption) *tier.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), key, options...)
	if err != nil {
		t.Fatalf("acquire %q: %v", key, err)
	}
	return lease
}

// eventually waits for a condition that has no event of its own.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
