// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestList_pagesByPrefix(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a := open(t, d.DSN())
		var want []string
		for i := range 25 {
			key := fmt.Sprintf("ns/p%02d", i)
			g := mustClaim(t, a, claimOf(key))
			if i%2 == 0 {
				mustRelease(t, a, key, g)
			}
			want = append(want, key)
		}
		mustClaim(t, a, claimOf("ns/q"))
		mustClaim(t, a, claimOf("ns/o\xff"))
		var got []string
		for after := ""; ; {
			page, err := a.List(t.Context(), "ns/p", after, 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				got = append(got, r.Key)
				if odd := (r.Key[len(r.Key)-1]-'0')%2 == 1; r.Held != odd || r.Held && r.Left <= 0 || r.Age < 0 || r.Fence == 0 {
					t.Errorf("%+v", r)
				}
			}
			after = got[len(got)-1]
		}
		if !slices.Equal(got, want) {
			t.Errorf("listed %q, want %q", got, want)
		}
		if page, err := a.List(t.Context(), "ns/o\xff", "", 10); err != nil || len(page) != 1 {
			t.Errorf("a prefix that ends in 0xff: %v, %v", page, err)
		}
		if _, err := a.List(t.Context(), "", "", 0); !errors.Is(err, ErrOption) {
			t.Errorf("a page of 0 records: %v", err)
		}
		if _, err := a.Show(t.Context(), "ns/none"); !errors.Is(err, ErrNoKey) {
			t.Errorf("a key without a row: %v", err)
		}
	})
}

// A revoked lease ends at its next renewal and release, and nobody is granted
// the key before it would have expired; with now, at once.
func TestForceRelease_revokes(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		core, logs := observer.New(zap.WarnLevel)
		a := open(t, d.DSN(), WithLogger(zap.New(core)), WithKeyRedactor(func(string) string { return "redacted" }))
		c := claimOf("ns/k")
		g := mustClaim(t, a, c)
		before, err := a.ForceRelease(t.Context(), "ns/k", "ada", false)
		if err != nil || !before.Held || before.Holder != c.Holder {
			t.Fatalf("%+v, %v", before, err)
		}
		if got := renewOne(t, a, "ns/k", g, c.TTL); lossReason(got.Err) != driver.LossTaken {
			t.Errorf("renewal of a revoked lease: %v", got.Err)
		}
		if err := a.Release(t.Context(), releaseOf("ns/k", g)); lossReason(err) != driver.LossTaken {
			t.Errorf("release of a revoked lease: %v", err)
		}
		_, err = a.Claim(t.Context(), c)
		if refusal, held := errors.AsType[*driver.Refusal](err); !held || refusal.Left <= 0 || refusal.Left > c.TTL {
			t.Errorf("a claim while the revoked lease runs: %v", err)
		}
		if _, err := a.ForceRelease(t.Context(), "ns/k", "ada", true); err != nil {
			t.Fatal(err)
		}
		if next := mustClaim(t, a, c); next.Fence <= g.Fence {
			t.Errorf("fence %d after %d", next.Fence, g.Fence)
		}
		entries := logs.FilterField(zap.String("by", "ada")).All()
		if len(entries) != 2 || entries[0].ContextMap()["key"] != "redacted" {
			t.Errorf("logged %v", entries)
		}
		if _, err := a.ForceRelease(t.Context(), "ns/none", "ada", false); !errors.Is(err, ErrNoKey) {
			t.Errorf("a key without a row: %v", err)
		}
	})
}

// An operator waits for a row that a transaction has locked, and no longer than
// the limit.
func TestForceRelease_lockedRow(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a, admin := open(t, d.DSN()), openAdmin(t, d)
		mustClaim(t, a, claimOf("ns/k"))
		unlock := lockRow(t, admin, "ns/k")
		start := time.Now()
		_, err := a.ForceRelease(t.Context(), "ns/k", "ada", true)
		if driver.ClassOf(err) != driver.ClassContention {
			t.Errorf("%v, want contention", err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
		unlock()
		if _, err := a.ForceRelease(t.Context(), "ns/k", "ada", true); err != nil {
			t.Error(err)
		}
	})
}
