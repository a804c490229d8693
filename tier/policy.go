// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/tierlock/tierlock/fallback"
)

// Tiers says which servers a policy's keys are locked with.
type Tiers uint8

const (
	// TiersBoth filters by Redis and decides by MySQL; with a locker that has no
	// filter it is TiersAuthority. It is the zero value.
	TiersBoth Tiers = iota
	// TiersAuthority asks MySQL alone.
	TiersAuthority
	// TiersFilter asks Redis alone: fast, without a fence, and no more exclusive
	// than Redis is.
	TiersFilter
)

var tiersNames = [...]string{TiersBoth: "both", TiersAuthority: "mysql", TiersFilter: "redis"}

func (t Tiers) String() string {
	if int(t) < len(tiersNames) {
		return tiersNames[t]
	}
	return fmt.Sprintf("tiers %d", uint8(t))
}

// MarshalText returns the name as it stands in a config file.
func (t Tiers) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads "both", "mysql" or "redis".
func (t *Tiers) UnmarshalText(text []byte) error {
	for known, name := range tiersNames {
		if name == string(text) {
			*t = Tiers(known)
			return nil
		}
	}
	return fmt.Errorf("tiers %q is unknown: want both, mysql or redis", text)
}

// Policy is what the owner of some keys decided: with which tiers they are
// locked, on which terms, and what happens when the deciding tier is down.
type Policy struct {
	// Match says which keys, without their namespace: a doublestar glob, in which
	// "*" stays within a part between slashes and "**" does not.
	Match string
	// Tiers are the servers to ask. Default: both.
	Tiers Tiers
	// Degrade is what happens, in this order, when the deciding tier does not
	// serve. Default: [retry, fail_closed].
	Degrade fallback.Ladder
	// Attempts is how often the rung retry asks again in one call. Default: 2.
	Attempts int
	// Backoff is the pause before it does, give or take a quarter. Default: 100 ms.
	Backoff time.Duration
	// LocalFor is how long the rung local lasts in one outage, counted from the
	// first local lease of the policy in it. The rung has no default.
	LocalFor time.Duration
	// Options are the terms of the policy's keys where they differ from the
	// locker's. Those of a call win over them.
	Options []AcquireOption
}

const defaultBackoff = 100 * time.Millisecond

// PolicyError is a policy that cannot work, or that no key would ever reach.
type PolicyError struct {
	Index  int // of the policy among those given
	Match  string
	Field  string // as in Policy: "Match", "Degrade", ...
	Reason string
}

func (e *PolicyError) Error() string {
	return fmt.Sprintf("%v: policy %d (%q): %s: %s", ErrOption, e.Index, e.Match, e.Field, e.Reason)
}

func (e *PolicyError) Unwrap() error { return ErrOption }

// ValidatePolicies returns a *[PolicyError] for everything that is wrong with
// them, joined; [ErrOption] is in its chain. It is what [New] and
// [Locker.SetPolicies] ask before they take any.
func ValidatePolicies(policies ...Policy) error {
	var errs []error
	for i, p := range policies {
		wrong := func(field, format string, args ...any) {
			errs = append(errs, &PolicyError{Index: i, Match: p.Match, Field: field, Reason: fmt.Sprintf(format, args...)})
		}
		if p.Match == "" || !doublestar.ValidatePattern(p.Match) {
			wrong("Match", "is no glob")
		}
		for j, earlier := range policies[:i] {
			if covers(earlier.Match, p.Match) {
				wrong("Match", "is never reached: policy %d (%q) comes first and matches the same keys", j, earlier.Match)
				break
			}
		}
		if int(p.Tiers) >= len(tiersNames) {
			wrong("Tiers", "%v is unknown", p.Tiers)
		}
		if p.Degrade != nil {
			if err := p.Degrade.Validate(); err != nil {
				wrong("Degrade", "%v", err)
			}
		}
		local := false
		for _, rung := range p.Degrade {
			local = local || rung == fallback.Local
		}
		switch {
		case p.LocalFor < 0:
			wrong("LocalFor", "%v is negative", p.LocalFor)
		case local && p.LocalFor == 0:
			wrong("LocalFor", "is missing: say how long the rung local may last in an outage")
		case !local && p.LocalFor > 0:
			wrong("LocalFor", "%v without the rung local means nothing", p.LocalFor)
		}
		if p.Attempts < 0 {
			wrong("Attempts", "%d is negative", p.Attempts)
		}
		if p.Backoff < 0 {
			wrong("Backoff", "%v is negative", p.Backoff)
		}
	}
	return errors.Join(errs...)
}

// covers reports whether every key that later matches is matched by earlier, as
// far as that can be told from equal patterns and from those that end in "/**".
func covers(earlier, later string) bool {
	if earlier == later || earlier == "**" {
		return true
	}
	prefix, all := strings.CutSuffix(earlier, "/**")
	if !all || strings.ContainsAny(prefix, `*?[{\`) {
		return false
	}
	return later == prefix || strings.HasPrefix(later, prefix+"/")
}

// policy is a Policy made ready.
type policy struct {
	Policy
	name  string // what it is called in logs and metrics; never a key
	terms terms
	local *localTime
	// closed is the answer of the rung fail_closed, made ahead: in an outage it
	// has to cost nothing.
	closed error
	seen   *policyMetrics // nil: none
}

// attempts is how often a call under the policy asks again after a fault.
func (p *policy) attempts() int {
	if !slices.Contains(p.Degrade, fallback.Retry) {
		return 0
	}
	return cmp.Or(p.Attempts, fallback.DefaultAttempts)
}

// pause is how long the rung retry waits before it asks again: callers that
// failed together must not ask together.
func (p *policy) pause() time.Duration { return p.Backoff*3/4 + rand.N(p.Backoff/2+1) }

// policySet is what one reload set.
type policySet struct {
	list []*policy
	rest *policy // of the keys that none matches
}

// find returns the policy of a key: the first that matches.
func (s *policySet) find(key string) *policy {
	for _, p := range s.list {
		if doublestar.MatchUnvalidated(p.Match, key) {
			return p
		}
	}
	return s.rest
}

// restName is the policy of keys that no other matches, in logs and metrics.
const restName = "default"

// compile makes policies ready. What a policy has used of its local time is kept
// across reloads, by its name.
func (l *Locker) compile(policies []Policy) (*policySet, error) {
	if err := ValidatePolicies(policies...); err != nil {
		return nil, err
	}
	var used []*policy
	if old := l.policies.Load(); old != nil {
		used = append(old.list, old.rest)
	}
	set := &policySet{}
	var errs []error
	for i, given := range append(policies[:len(policies):len(policies)], Policy{Match: restName}) {
		p := &policy{Policy: given, name: given.Match, terms: l.settings.terms.with(given.Options), local: &localTime{}}
		if p.Degrade == nil {
			p.Degrade = fallback.Default()
		}
		p.Backoff = cmp.Or(p.Backoff, defaultBackoff)
		for _, earlier := range used {
			if earlier.name == p.name {
				p.local = earlier.local
			}
		}
		p.closed = &outage{policy: p, health: l.deciding(p)}
		switch err := p.terms.validate(); {
		case err != nil:
			errs = append(errs, &PolicyError{Index: i, Match: given.Match, Field: "Options", Reason: err.Error()})
		case given.Tiers == TiersFilter && l.filter == nil:
			errs = append(errs, &PolicyError{Index: i, Match: given.Match, Field: "Tiers", Reason: "is redis, and the locker has no filter"})
		}
		if i < len(policies) {
			set.list = append(set.list, p)
		} else {
			set.rest = p
		}
	}
	return set, errors.Join(errs...)
}

// SetPolicies replaces all policies, or none: after an error the old ones stand.
// A lease keeps the terms it was granted on; who waits goes on under the new
// ones. Errors: [ErrOption], as a *[PolicyError] each.
func (l *Locker) SetPolicies(policies ...Policy) error {
	l.reloading.Lock()
	defer l.reloading.Unlock()
	set, err := l.compile(policies)
	if err != nil {
		return err
	}
	for _, p := range append(set.list[:len(set.list):len(set.list)], set.rest) {
		p.seen = l.metrics.of(p.name)
	}
	l.policies.Store(set)
	return nil
}

// WithPolicies sets what holds for which keys; the first that matches does. Keys
// that none matches have both tiers and the rungs retry and fail_closed.
// Default: none.
func WithPolicies(policies ...Policy) Option {
	return lockerOption(func(s *settings) { s.policies = policies })
}
