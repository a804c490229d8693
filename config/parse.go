// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tierlock/tierlock/fallback"
)

// maxPolicies bounds a list that every acquire looks through from its start.
const maxPolicies = 1000

// place is where a value was set, and as what.
type place struct {
	line int
	env  string
	text string // as messages show it
}

// reading is one config being read.
type reading struct {
	file   string
	env    environ
	places map[string]*place // by the path of a field or a section
	errs   []*Error
	failed map[string]bool // paths with an error: one each is enough
}

// Parse reads a config from YAML; name stands for the file in errors. All that is
// wrong is returned at once: joined errors, each an *[Error].
func Parse(name string, text []byte, opts ...Option) (Config, error) {
	o := newOptions(opts)
	r := &reading{file: name, env: newEnviron(o.environ), places: make(map[string]*place), failed: make(map[string]bool)}
	root, err := document(name, text)
	if err != nil {
		return Config{}, err
	}
	c := Default()
	config := reflect.ValueOf(&c).Elem()
	scalars := leavesOf(config, "") // before there are policies
	r.section(root, config, "")
	r.override(scalars)
	r.inherit(&c)
	r.validate(&c)
	if err := join(r.errs); err != nil {
		return Config{}, err
	}
	return c, nil
}

// section reads a mapping into the fields of a struct.
func (r *reading) section(n *yaml.Node, into reflect.Value, path string) {
	fields := fieldsOf(into, path)
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+shownName(key.Value), ".")
		known := slices.Index(names, key.Value)
		switch first, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			r.add(&Error{File: r.file, Line: key.Line, Field: path, Reason: "a field's name is a plain word"})
		case known < 0:
			r.add(&Error{File: r.file, Line: key.Line, Field: at, Reason: "unknown field" + suggestion(key.Value, names)})
		case twice:
			r.add(&Error{File: r.file, Line: key.Line, Field: at, Reason: fmt.Sprintf("stands there twice, first on line %d", first)})
		default:
			lines[key.Value] = key.Line
			r.field(value, key.Line, fields[known])
		}
	}
}

func suggestion(name string, names []string) string {
	if near, by := nearest(name, names); by <= len(name)/2 {
		return "; did you mean " + near + "?"
	}
	return "; known here: " + strings.Join(names, ", ")
}

// field reads a value that begins on line, or after its name there.
func (r *reading) field(n *yaml.Node, line int, f field) {
	r.places[f.path] = &place{line: line}
	switch f.holds() {
	case aSection:
		if r.is(n, yaml.MappingNode, f, "fields, one a line") {
			r.section(n, f.value, f.path)
		}
	case aList:
		if r.is(n, yaml.SequenceNode, f, "a list") {
			r.list(n, f)
		}
	case aLadder:
		if r.is(n, yaml.SequenceNode, f, "a list, as in [retry, fail_closed]") {
			r.ladder(n, f)
		}
	case aScalar:
		if r.is(n, yaml.ScalarNode, f, "one value") {
			r.places[f.path].text = shownIn(f, n.Value)
			text, reason := r.env.expand(n.Value)
			if reason == "" {
				reason = f.set(text)
			}
			r.wrong(f, reason)
		}
	}
}

func (r *reading) list(n *yaml.Node, f field) {
	if len(n.Content) > maxPolicies {
		r.wrong(f, fmt.Sprintf("holds %d, at most %d are looked through", len(n.Content), maxPolicies))
		return
	}
	for i, item := range n.Content {
		one := field{path: element(f.path, i), value: reflect.New(f.value.Type().Elem()).Elem()}
		r.places[one.path] = &place{line: item.Line}
		setDefaults(one.value)
		if r.is(item, yaml.MappingNode, one, "fields, as in {match: \"payment/**\", degrade: [fail_closed]}") {
			r.section(item, one.value, one.path)
		}
		// One that is wrong keeps its place: messages count from the file's first.
		f.value.Set(reflect.Append(f.value, one.value))
	}
}

func (r *reading) ladder(n *yaml.Node, f field) {
	ladder := fallback.Ladder{}
	var texts []string
	wrong := ""
	for _, item := range n.Content {
		texts = append(texts, shown(item.Value))
		text, reason := r.env.expand(item.Value)
		var rung fallback.Rung
		switch step := (field{value: reflect.ValueOf(&rung).Elem()}); {
		case item.Kind != yaml.ScalarNode:
			reason = "want names of rungs: retry, local or fail_closed"
		case reason == "":
			if reason = step.set(text); reason != "" {
				reason = texts[len(texts)-1] + " " + reason
			}
		}
		if wrong == "" {
			wrong = reason
		}
		ladder = append(ladder, rung)
	}
	r.places[f.path].text = shown("[" + strings.Join(texts, ", ") + "]")
	r.wrong(f, wrong)
	f.value.Set(reflect.ValueOf(ladder))
}

// is reports whether n holds what a field wants, and complains where it does not.
// The value is not shown: what stands in the wrong place may be a secret.
func (r *reading) is(n *yaml.Node, kind yaml.Kind, f field, want string) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		r.wrong(f, "aliases are not followed: write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		r.wrong(f, "tags are not read: write the value alone")
	case n.ShortTag() == "!!null":
		r.wrong(f, "has no value: give it one, or leave the field out")
	case n.Kind != kind:
		r.wrong(f, "is "+kinds[n.Kind]+", want "+want)
	default:
		return true
	}
	return false
}

var kinds = map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "one value"}

// inherit gives policies the terms and the ladder that they leave out.
func (r *reading) inherit(c *Config) {
	for i := range c.Policies {
		p := &c.Policies[i]
		path := element("policies", i)
		common := fieldsOf(reflect.ValueOf(&c.Defaults).Elem(), path)
		for j, f := range fieldsOf(reflect.ValueOf(&p.Terms).Elem(), path) {
			if !r.written(f.path) {
				f.value.Set(common[j].value)
			}
		}
		if !r.written(path + ".degrade") {
			p.Degrade = fallback.Default()
		}
	}
}

func (r *reading) written(path string) bool { return r.places[path] != nil }

// wrong adds an error about a field, where it was set; none when reason is empty.
func (r *reading) wrong(f field, reason string) {
	if reason == "" {
		return
	}
	for path := f.path; path != ""; path = around(path) {
		if r.failed[path] {
			return
		}
	}
	e := &Error{Field: f.path, Reason: reason}
	at := r.places[f.path]
	switch secret, ok := f.value.Interface().(Secret); {
	case ok && secret != Secret{}:
		e.Value = secret.String()
	case at != nil:
		e.Value = at.text
	case f.holds() == aScalar, f.holds() == aLadder:
		e.Value = shown(fmt.Sprint(f.value))
	}
	// A field that nobody wrote is looked for where the one around it begins.
	for path := f.path; at == nil && path != ""; path = around(path) {
		at = r.places[path]
	}
	switch {
	case at == nil:
		e.File = r.file
	case at.env != "":
		e.Env = at.env
	default:
		e.File, e.Line = r.file, at.line
	}
	r.failed[f.path] = true
	r.add(e)
}

// around returns the path of what holds the field or element at path.
func around(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

func (r *reading) add(e *Error) { r.errs = append(r.errs, e) }
