// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
)

// maxDepth is how many levels a payload may have, pointers and interfaces counted.
// json.Marshal recurses without a limit, and a stack that overflows cannot be
// recovered from.
const maxDepth = 10000

var errDepth = errors.New("payload has more than 10000 levels, or a cycle")

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// checkDepth looks at what json.Marshal would.
func checkDepth(payload any) error { return depth(reflect.ValueOf(payload), 0) }

func depth(v reflect.Value, level int) error {
	if level > maxDepth {
		return errDepth
	}
	if !v.IsValid() || shallow(v.Type()) {
		return nil
	}
	switch v.Kind() { //nolint:exhaustive // the others are shallow
	case reflect.Pointer, reflect.Interface:
		return depth(v.Elem(), level+1)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() && !f.Anonymous || f.Tag.Get("json") == "-" {
				continue
			}
			if err := depth(v.Field(i), level+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		if shallow(v.Type().Elem()) {
			return nil
		}
		for entries := v.MapRange(); entries.Next(); {
			if err := depth(entries.Value(), level+1); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		if shallow(v.Type().Elem()) {
			return nil
		}
		for i := range v.Len() {
			if err := depth(v.Index(i), level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// nested are the kinds of values with levels.
var nested = []reflect.Kind{reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Map, reflect.Slice, reflect.Array}

// shallow reports that a value of t has no levels, or says itself how it is encoded.
func shallow(t reflect.Type) bool {
	if !slices.Contains(nested, t.Kind()) {
		return true
	}
	return t.Kind() != reflect.Interface && (t.Implements(marshaler) || t.Implements(textMarshaler))
}
