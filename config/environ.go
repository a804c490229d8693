// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"strings"
)

// prefix begins the variables that set fields.
const prefix = "TIERLOCK_"

// environ is the environment a config is read in.
type environ struct {
	vars map[string]string
	used map[string]bool // named in the file
}

func newEnviron(list []string) environ {
	e := environ{vars: make(map[string]string), used: make(map[string]bool)}
	for _, entry := range list {
		if name, text, ok := strings.Cut(entry, "="); ok {
			e.vars[name] = text
		}
	}
	return e
}

// envName returns the variable of the field at path.
func envName(path string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// reference is what "$" may begin in a value.
var (
	reference = regexp.MustCompile(`\$(\$|\{[^}]*\}?|)`)
	variable  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// expand replaces ${NAME} by the variable, and $$ by $.
func (e environ) expand(text string) (expanded, reason string) {
	expanded = reference.ReplaceAllStringFunc(text, func(ref string) string {
		name := strings.TrimSuffix(strings.TrimPrefix(ref, "${"), "}")
		value, set := e.vars[name]
		switch {
		case ref == "$$":
			return "$"
		case ref == "$":
			reason = "a lone $ means nothing: write $$ for the character, ${NAME} for a variable"
		case !strings.HasSuffix(ref, "}"):
			reason = "${ is not closed: write ${NAME}"
		case !variable.MatchString(name):
			reason = "there is no name of a variable between ${ and }: write ${NAME}; there are no defaults"
		case !set:
			reason = fmt.Sprintf("the variable %s is not set", name)
		default:
			e.used[name] = true
		}
		return value
	})
	return expanded, reason
}

// override sets what the environment has a variable for; an empty one counts as
// none. A variable that is nearly a field's is an error, since the typing
// mistake would go unseen; others that begin alike belong to somebody else, as
// those do that Kubernetes makes for a service of that name.
func (r *reading) override(fields []field) {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		name := envName(f.path)
		names = append(names, name)
		text := r.env.vars[name]
		if text == "" {
			continue
		}
		r.places[f.path] = &place{env: name, text: shownIn(f, text)}
		if reason := f.set(text); reason != "" {
			r.wrong(f, reason)
		}
	}
	for name := range r.env.vars {
		if !strings.HasPrefix(name, prefix) || r.env.used[name] {
			continue
		}
		if near, by := nearest(name, names); by > 0 && by <= 2 {
			r.add(&Error{Env: name, Reason: "sets nothing; did you mean " + near + "?"})
		}
	}
}
