// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/tierlock/tierlock/fallback"
)

// field is one field of a [Config], or of something in it, that can be set.
type field struct {
	path  string // as in messages: defaults.ttl, policies[2].match
	name  string // the last part of it
	value reflect.Value
	tag   reflect.StructTag
}

// fieldsOf returns the fields of a section at path.
func fieldsOf(section reflect.Value, path string) []field {
	var all []field
	for i := range section.NumField() {
		f := section.Type().Field(i)
		if f.Anonymous {
			all = append(all, fieldsOf(section.Field(i), path)...)
			continue
		}
		name := f.Tag.Get("yaml")
		all = append(all, field{path: strings.TrimPrefix(path+"."+name, "."), name: name, value: section.Field(i), tag: f.Tag})
	}
	return all
}

// leavesOf returns what a section holds at any depth, sections left out.
func leavesOf(section reflect.Value, path string) []field {
	var all []field
	for _, f := range fieldsOf(section, path) {
		switch f.holds() {
		case aSection:
			all = append(all, leavesOf(f.value, f.path)...)
		case aList:
			for i := range f.value.Len() {
				all = append(all, leavesOf(f.value.Index(i), element(f.path, i))...)
			}
		case aLadder, aScalar:
			all = append(all, f)
		}
	}
	return all
}

func element(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// shape is what YAML has to hold for a field.
type shape uint8

const (
	aScalar shape = iota
	aSection
	aList // of sections
	aLadder
)

func (f field) holds() shape {
	switch f.value.Interface().(type) {
	case Secret:
		return aScalar
	case fallback.Ladder:
		return aLadder
	}
	if kind := f.value.Kind(); kind == reflect.Struct {
		return aSection
	} else if kind == reflect.Slice {
		return aList
	}
	return aScalar
}

// set gives a scalar the value that text stands for, or says why it cannot. The
// reason never holds the text: it may come from a variable.
func (f field) set(text string) (reason string) {
	if _, secret := f.value.Interface().(Secret); text == "" && !secret {
		return "is empty: give it a value, or leave the field out"
	}
	switch into := f.value.Addr().Interface().(type) {
	case *string:
		*into = text
	case *Secret:
		*into = NewSecret(text)
	case *time.Duration:
		*into, reason = parseDuration(text)
	case *int:
		var n int64
		n, reason = parseWhole(text, math.MinInt32, math.MaxInt32)
		*into = int(n)
	case *uint32:
		var n int64
		n, reason = parseWhole(text, 0, math.MaxUint32)
		*into = uint32(n)
	case *float64:
		var err error
		if *into, err = strconv.ParseFloat(text, 64); err != nil {
			reason = "is no number"
		}
	case encoding.TextUnmarshaler:
		if err := into.UnmarshalText([]byte(text)); err != nil {
			_, want, _ := strings.Cut(err.Error(), ": want ")
			reason = "is unknown: want " + want
		}
	default:
		panic("config: no file can hold a " + f.value.Type().String())
	}
	return reason
}

func parseDuration(text string) (d time.Duration, reason string) {
	d, err := time.ParseDuration(text)
	if err == nil {
		return d, ""
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, "has no unit: write ms, s, m or h behind the number"
	}
	return 0, "is no duration: want a number and a unit, as in 500ms, 10s, 5m or 24h"
}

func parseWhole(text string, least, most int64) (n int64, reason string) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, "is no whole number"
	case n < least && least == 0:
		return 0, "must not be negative"
	case err != nil, n < least, n > most:
		return 0, "is too large a number"
	}
	return n, ""
}

// setDefaults sets everything below a section that has a default.
func setDefaults(section reflect.Value) {
	for _, f := range leavesOf(section, "") {
		if text, ok := f.tag.Lookup("default"); ok {
			if reason := f.set(text); reason != "" {
				panic("config: the default of " + f.path + " " + reason)
			}
		}
	}
}

// outOfBounds says how a value breaks the bounds of its field, if it does.
func (f field) outOfBounds() (reason string) {
	bound := func(name string) (float64, string, bool) {
		text, ok := f.tag.Lookup(name)
		if !ok {
			return 0, "", false
		}
		b := field{path: f.path, value: reflect.New(f.value.Type()).Elem()}
		if reason := b.set(text); reason != "" {
			panic("config: the bound of " + f.path + " " + reason)
		}
		return number(b.value), text, true
	}
	// Comparisons are the way round that NaN fails.
	if least, text, ok := bound("min"); ok && !(number(f.value) >= least) {
		if least == 0 {
			return "must not be negative"
		}
		return "must be at least " + text
	}
	if most, text, ok := bound("max"); ok && !(number(f.value) <= most) {
		return "must be at most " + text
	}
	return ""
}

func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	default:
		return v.Float()
	}
}
