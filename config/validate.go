// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
)

var namespacePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// Validate returns everything that is wrong with a config that was not read from
// a file: joined errors, each an *[Error] that names its field. What [Load] and
// [Parse] return has been validated.
func (c Config) Validate() error {
	r := &reading{failed: make(map[string]bool)}
	r.validate(&c)
	return join(r.errs)
}

// validate adds what is wrong with a config that has been read.
func (r *reading) validate(c *Config) {
	all := make(map[string]field)
	for _, f := range leavesOf(reflect.ValueOf(c).Elem(), "") {
		all[f.path] = f
		r.wrong(f, f.outOfBounds())
	}
	if !namespacePattern.MatchString(c.Namespace) {
		r.wrong(all["namespace"], "must match [a-z0-9_-]{1,63}")
	}
	r.wrong(all["redis.url"], c.Redis.URL.wrongURL())
	r.wrong(all["mysql.dsn"], c.MySQL.DSN.wrongDSN())
	if e, ok := errors.AsType[*breaker.SettingError](c.BreakerSettings().Validate()); ok {
		r.wrong(all["breaker."+yamlName(c.Breaker, e.Field)], strings.ReplaceAll(e.Reason, "ProbeEvery", "probe_every"))
	}
	timeout := all["mysql.timeout"]
	r.terms(c.Defaults, "defaults", timeout, c.MySQL.Timeout, all)
	for i, p := range c.Policies {
		path := element("policies", i)
		r.terms(p.Terms, path, timeout, c.MySQL.Timeout, all)
		r.policy(p, path, all)
	}
	r.policies(c, all)
}

// terms checks what a lease's times must be beside the time a statement may take.
func (r *reading) terms(t Terms, path string, timeoutField field, timeout time.Duration, all map[string]field) {
	for _, rule := range []struct {
		name, times  string
		value, least time.Duration
	}{
		{"ttl", "twice ", t.TTL, 2 * timeout},
		{"wait", "", t.Wait, timeout},
	} {
		if rule.value >= rule.least {
			continue
		}
		f := all[path+"."+rule.name]
		switch {
		case r.places == nil || r.written(f.path):
			r.wrong(f, fmt.Sprintf("must be at least %smysql.timeout (%v): %v", rule.times, timeout, rule.least))
		case path == "defaults":
			r.wrong(timeoutField, fmt.Sprintf("is too long for %s (%v), which must be at least %sit: set %s too",
				f.path, rule.value, rule.times, f.path))
		}
	}
}

// policy checks what [tier.ValidatePolicies] cannot see.
func (r *reading) policy(p Policy, path string, all map[string]field) {
	if p.Match == "" {
		r.wrong(all[path+".match"], `is missing: say which keys, as in "payment/**"`)
	}
	if err, ok := errors.AsType[*fallback.LadderError](p.Degrade.Validate()); ok && p.Degrade != nil {
		r.wrong(all[path+".degrade"], err.Reason)
	}
	for _, name := range []string{"attempts", "backoff"} {
		if f := all[path+"."+name]; r.written(f.path) && !slices.Contains(p.Degrade, fallback.Retry) {
			r.wrong(f, "without the rung retry means nothing: put retry into degrade, or leave it out")
		}
	}
	if f := all[path+".backoff"]; r.written(f.path) && p.Backoff >= p.Wait {
		r.wrong(f, fmt.Sprintf("must be less than wait (%v): the rung retry stays within it", p.Wait))
	}
}

// policies has the policies judged by the package that keeps them.
func (r *reading) policies(c *Config, all map[string]field) {
	for _, e := range policyErrors(tier.ValidatePolicies(c.TierPolicies()...)) {
		path := element("policies", e.Index)
		name := yamlName(Policy{}, e.Field)
		f, reason := all[path+"."+name], e.Reason
		for i, earlier := range c.Policies[:e.Index] {
			if at := r.places[element("policies", i)+".match"]; at != nil {
				reason = strings.ReplaceAll(reason, fmt.Sprintf("%q", earlier.Match), fmt.Sprintf("%s on line %d", at.text, at.line))
			}
		}
		// What is missing is told where it was asked for.
		if ladder := all[path+".degrade"]; name == "local_for" && !r.written(f.path) && r.written(ladder.path) {
			f, reason = ladder, "local_for "+reason
		}
		r.wrong(f, reason)
	}
}

func policyErrors(err error) (all []*tier.PolicyError) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	for _, err := range joined.Unwrap() {
		if e, ok := errors.AsType[*tier.PolicyError](err); ok {
			all = append(all, e)
		}
	}
	return all
}

// yamlName returns what a field of a section is called in a file.
func yamlName(section any, goName string) string {
	f, _ := reflect.TypeOf(section).FieldByName(goName)
	return f.Tag.Get("yaml")
}
