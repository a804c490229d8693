// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDoc_tableOfFields holds the package's documentation, and the example that
// is shipped, to the fields there are.
func TestDoc_tableOfFields(t *testing.T) {
	t.Parallel()
	line := func(f field, last string) string {
		least, most := f.tag.Get("min"), f.tag.Get("max")
		bounds := ""
		switch {
		case least != "" && most != "":
			bounds = least + " to " + most
		case least != "":
			bounds = "from " + least
		}
		otherwise := cmp.Or(f.tag.Get("default"), "none")
		if f.holds() == aLadder {
			otherwise = ""
		}
		return fmt.Sprintf("//\t%-21s %-8s %-14s %s", f.path, otherwise, bounds, last)
	}
	var c Config
	var table []string
	table = append(table, fmt.Sprintf("//\t%-21s %-8s %-14s %s", "field", "default", "bounds", "variable"))
	for _, f := range leavesOf(reflect.ValueOf(&c).Elem(), "") {
		table = append(table, line(f, envName(f.path)))
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(table, "\n"); !strings.Contains(string(doc), want) {
		t.Errorf("doc.go does not hold this table:\n%s", want)
	}

	var p Policy
	table = nil
	for _, f := range fieldsOf(reflect.ValueOf(&p).Elem(), "") {
		if _, common := reflect.TypeFor[Terms]().FieldByNameFunc(func(name string) bool { return yamlName(Terms{}, name) == f.name }); !common && f.name != "match" {
			what := map[string]string{
				"tiers":     "both, mysql or redis",
				"degrade":   "some of retry, local, fail_closed, in this order; default [retry, fail_closed]",
				"local_for": "of the rung local, which needs it",
				"attempts":  "of the rung retry",
				"backoff":   "of the rung retry; less than wait",
			}[f.name]
			table = append(table, line(f, what))
		}
	}
	if want := strings.Join(table, "\n"); !strings.Contains(string(doc), want) {
		t.Errorf("doc.go does not hold this table:\n%s", want)
	}

	example, err := os.ReadFile("../deploy/tierlock.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(leavesOf(reflect.ValueOf(&c).Elem(), ""), fieldsOf(reflect.ValueOf(&p).Elem(), "")...) {
		if !strings.Contains(string(example), f.name+":") {
			t.Errorf("deploy/tierlock.yaml says nothing of %s", f.path)
		}
	}
}
