// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a config. It never shows a password, nor
// the text of a variable that the file names.
type Error struct {
	File   string // empty for a value that no file set
	Line   int    // from 1; 0 when the file as a whole is meant
	Env    string // the variable of the environment that set the value
	Field  string // as in policies[2].degrade; empty when no field is concerned
	Value  string // as it is written
	Reason string // what is wrong, and what to do
	Err    error  // of the operating system, when the file could not be read
}

// Error returns file:line: field: value: reason, without what is not known.
func (e *Error) Error() string {
	var parts []string
	switch {
	case e.Env != "":
		parts = append(parts, "environment "+e.Env)
	case e.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", e.File, e.Line))
	case e.File != "":
		parts = append(parts, e.File)
	}
	for _, part := range []string{e.Field, e.Value, e.Reason} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

func (e *Error) Unwrap() error { return e.Err }

// plain is what is shown without quotes.
var plain = regexp.MustCompile(`^(\[[\w.$%{}+*/, -]*\]|[\w.$%{}+*/, -]+)$`)

const maxShown = 64

// shown returns a value that is no secret by its field, as messages show it: not
// at any length, and not at all when it looks like an address with a password.
func shown(text string) string {
	switch {
	case strings.Contains(text, "@"), strings.Contains(text, "://"):
		return hidden
	case len(text) > maxShown:
		return fmt.Sprintf("%.*q...", maxShown, text)
	case !plain.MatchString(text):
		return fmt.Sprintf("%q", text)
	}
	return text
}

var word = regexp.MustCompile(`^[\w.<>-]{1,64}$`)

// shownName is shown, for what stands where the name of a field should.
func shownName(name string) string {
	if word.MatchString(name) {
		return name
	}
	return hidden
}

// shownIn is shown, for the text of a field. What is neither a number nor a word
// where one should be may be an address on the wrong line.
func shownIn(f field, text string) string {
	if _, secret := f.value.Interface().(Secret); secret {
		return hidden
	}
	if f.value.Kind() != reflect.String && text != "" && !plain.MatchString(text) {
		return hidden
	}
	return shown(text)
}

const maxErrors = 50

// join returns the errors in the order of the file.
func join(errs []*Error) error {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		if a.Env != "" || b.Env != "" { // after the file, in no order
			return strings.Compare(a.Env, b.Env)
		}
		return a.Line - b.Line
	})
	var all []error
	for i, e := range errs {
		if i == maxErrors {
			all = append(all, &Error{File: e.File, Reason: fmt.Sprintf("and %d more", len(errs)-i)})
			break
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}
