// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

func TestValidatePolicies(t *testing.T) {
	local := fallback.Ladder{fallback.Local, fallback.FailClosed}
	for _, c := range []struct {
		name  string
		bad   []tier.Policy
		index int
		field string
	}{
		{"no pattern", []tier.Policy{{}}, 0, "Match"},
		{"bad glob", []tier.Policy{{Match: "a/["}}, 0, "Match"},
		{"twice", []tier.Policy{{Match: "a"}, {Match: "a"}}, 1, "Match"},
		{"under a prefix", []tier.Policy{{Match: "a/**"}, {Match: "b"}, {Match: "a/b/*"}}, 2, "Match"},
		{"the prefix itself", []tier.Policy{{Match: "a/**"}, {Match: "a"}}, 1, "Match"},
		{"under everything", []tier.Policy{{Match: "**"}, {Match: "b"}}, 1, "Match"},
		{"empty ladder", []tier.Policy{{Match: "a", Degrade: fallback.Ladder{}}}, 0, "Degrade"},
		{"after fail_closed", []tier.Policy{{Match: "a", Degrade: fallback.Ladder{fallback.FailClosed, fallback.Retry}}}, 0, "Degrade"},
		{"local without time", []tier.Policy{{Match: "a", Degrade: local}}, 0, "LocalFor"},
		{"time without local", []tier.Policy{{Match: "a", LocalFor: time.Second}}, 0, "LocalFor"},
		{"negative time", []tier.Policy{{Match: "a", Degrade: local, LocalFor: -1}}, 0, "LocalFor"},
		{"negative attempts", []tier.Policy{{Match: "a", Attempts: -1}}, 0, "Attempts"},
		{"negative backoff", []tier.Policy{{Match: "a", Backoff: -1}}, 0, "Backoff"},
		{"unknown tiers", []tier.Policy{{Match: "a", Tiers: 9}}, 0, "Tiers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := tier.ValidatePolicies(c.bad...)
			said, ok := errors.AsType[*tier.PolicyError](err)
			if !errors.Is(err, tier.ErrOption) || !ok || said.Index != c.index || said.Field != c.field {
				t.Errorf("%v, want one of policy %d, field %s", err, c.index, c.field)
			}
		})
	}
	if err := tier.ValidatePolicies(tier.Policy{Match: "a/*"}, tier.Policy{Match: "a/**"}, tier.Policy{Match: "**"}); err != nil {
		t.Errorf("from the narrow to the wide: %v", err)
	}
}

func TestNew_refusesPoliciesItCannotKeep(t *testing.T) {
	for name, p := range map[string]tier.Policy{
		"redis without a filter":  {Match: "a", Tiers: tier.TiersFilter},
		"a TTL the tier is above": {Match: "a", Options: []tier.AcquireOption{tier.WithTTL(time.Millisecond)}},
	} {
		if _, err := tier.New(nil, tiertest.NewAuthority(), tier.WithPolicies(p)); !errors.Is(err, tier.ErrOption) {
			t.Errorf("%s: %v, want ErrOption", name, err)
		}
	}
}

// The first that matches holds; its options stand between the locker's and the
// call's.
func TestPolicies_firstMatch(t *testing.T) {
	r := newRig(t, tier.WithHolder("locker"), tier.WithPolicies(
		tier.Policy{Match: "a/*", Options: []tier.AcquireOption{tier.WithHolder("narrow")}},
		tier.Policy{Match: "a/**", Options: []tier.AcquireOption{tier.WithHolder("wide")}},
	))
	for key, want := range map[string]string{"a/b": "narrow", "a/b/c": "wide", "b": "locker"} {
		lease := r.must(t, key)
		if lease.Holder() != want {
			t.Errorf("%q: holder %q, want %q", key, lease.Holder(), want)
		}
		r.releaseNow(t, lease)
		lease = r.must(t, key, tier.WithHolder("call"))
		if lease.Holder() != "call" {
			t.Errorf("%q: holder %q, want the call's", key, lease.Holder())
		}
		r.releaseNow(t, lease)
	}
}

func (r *rig) releaseNow(t *testing.T, lease *tier.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A reload that is refused changes nothing; one that is taken reaches who waits
// already, and leaves what is held on its terms.
func TestSetPolicies(t *testing.T) {
	named := func(holder string) tier.Policy {
		return tier.Policy{Match: "**", Options: []tier.AcquireOption{tier.WithHolder(holder)}}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithPolicies(named("old")))
		held := r.must(t, "k")
		got := make(chan *tier.Lease)
		go func() { got <- r.must(t, "k") }()
		synctest.Wait()
		if err := r.SetPolicies(named("new"), tier.Policy{Match: "["}); !errors.Is(err, tier.ErrOption) {
			t.Errorf("a bad reload: %v, want ErrOption", err)
		}
		if lease := r.must(t, "x"); lease.Holder() != "old" {
			t.Errorf("a refused reload is in force: holder %q", lease.Holder())
		} else {
			r.releaseNow(t, lease)
		}
		if err := r.SetPolicies(named("new")); err != nil {
			t.Fatal(err)
		}
		if held.Holder() != "old" {
			t.Errorf("a held lease changed its holder to %q", held.Holder())
		}
		r.releaseNow(t, held)
		next := <-got
		if next.Holder() != "new" {
			t.Errorf("who waited got holder %q, want that of the new policy", next.Holder())
		}
		r.releaseNow(t, next)
	})
}

// A reload in the middle of an outage does not give a policy its local time anew.
func TestSetPolicies_keepsLocalTime(t *testing.T) {
	policy := tier.Policy{Match: "inventory/**", Degrade: fallback.Ladder{fallback.Local}, LocalFor: localFor}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithPolicies(policy))
		r.open(t)
		r.release(t, r.must(t, "inventory/1"))
		time.Sleep(localFor - time.Second)
		if err := r.SetPolicies(policy); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		before := time.Now()
		if _, err := r.Acquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("local time used up before the reload: %v, want ErrUnavailable", err)
		}
		if d := time.Since(before); d != 0 {
			t.Errorf("refused after %v, want at once", d)
		}
	})
}
