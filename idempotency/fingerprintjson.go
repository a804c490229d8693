// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// canonicalJSON is the one form of what text means. It takes time and memory in
// proportion to text, whatever its numbers and its nesting. marshaled means that
// text comes from json.Marshal.
func canonicalJSON(text []byte, marshaled bool) ([]byte, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil { // one value, at most 10000 levels
		return nil, syntax(err)
	}
	if err := checkUnicode(text, marshaled); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := readValue(d)
	if err != nil {
		return nil, err
	}
	return appendValue(make([]byte, 0, len(text)), v), nil
}

// syntax is what is wrong without the character that was met.
func syntax(err error) error {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not one JSON value: malformed, too deep or followed by more, at byte %d", s.Offset)
	}
	return errors.New("not one JSON value")
}

// checkUnicode refuses what a decoder would silently replace by U+FFFD, so that two
// payloads would become one. text is well-formed, so that a backslash begins an
// escape sequence.
func checkUnicode(text []byte, marshaled bool) error {
	if !utf8.Valid(text) {
		return errors.New("text is not UTF-8")
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		at := i
		i++
		if text[i] != 'u' {
			continue
		}
		r := escaped(text[i:])
		i += 4
		switch {
		case marshaled && r == utf8.RuneError: // a true U+FFFD is not escaped
			return fmt.Errorf("text is not UTF-8, near byte %d of its JSON form", at)
		case !utf16.IsSurrogate(r):
			continue
		}
		if low := escapedAfter(text[i+1:]); utf16.DecodeRune(r, low) == utf8.RuneError {
			return fmt.Errorf("half a surrogate pair at byte %d", at)
		}
		i += 6
	}
	return nil
}

// escaped reads the four digits after the u of an escape sequence.
func escaped(text []byte) rune {
	n, err := strconv.ParseUint(string(text[1:5]), 16, 16)
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}

// escapedAfter is the escape sequence that text begins with, or 0.
func escapedAfter(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	return escaped(text[1:])
}

// member is a field of an object. Values are objects ([]member), arrays ([]any),
// strings, and canonical text of everything else (literal).
type member struct {
	name  string
	value any
}

type literal string

func readValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, syntax(err)
	}
	switch t := token.(type) {
	case nil:
		return literal("null"), nil
	case bool:
		return literal(strconv.FormatBool(t)), nil
	case string:
		return t, nil
	case json.Number:
		n, err := canonicalNumber(string(t))
		if err != nil {
			return nil, fmt.Errorf("%w, before byte %d", err, d.InputOffset())
		}
		return literal(n), nil
	case json.Delim:
		if t == '{' {
			return readObject(d)
		}
		return readArray(d)
	}
	return nil, fmt.Errorf("unknown token %T", token)
}

func readObject(d *json.Decoder) (any, error) {
	begin := d.InputOffset()
	var members []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, syntax(err)
		}
		value, err := readValue(d)
		if err != nil {
			return nil, err
		}
		text, _ := name.(string) // well-formed
		members = append(members, member{text, value})
	}
	if _, err := d.Token(); err != nil {
		return nil, syntax(err)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	for i := 1; i < len(members); i++ {
		if members[i-1].name == members[i].name {
			return nil, fmt.Errorf("a field occurs twice in the object at byte %d", begin-1)
		}
	}
	return members, nil
}

func readArray(d *json.Decoder) (any, error) {
	elements := []any{}
	for d.More() {
		value, err := readValue(d)
		if err != nil {
			return nil, err
		}
		elements = append(elements, value)
	}
	if _, err := d.Token(); err != nil {
		return nil, syntax(err)
	}
	return elements, nil
}

func appendValue(to []byte, v any) []byte {
	switch v := v.(type) {
	case literal:
		return append(to, v...)
	case string:
		return appendString(to, v)
	case []any:
		to = append(to, '[')
		for i, element := range v {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendValue(to, element)
		}
		return append(to, ']')
	case []member:
		to = append(to, '{')
		for i, m := range v {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendValue(append(appendString(to, m.name), ':'), m.value)
		}
		return append(to, '}')
	}
	return to
}

// appendString escapes what JSON has to, and in one way.
func appendString(to []byte, s string) []byte {
	to = append(to, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\':
			to = append(to, '\\', c)
		case c < 0x20:
			to = fmt.Appendf(to, `\u%04x`, c)
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}

// maxExponent is how many digits an exponent may have: with more, what is added to
// it could overflow.
const maxExponent = 18

// canonicalNumber is a JSON number as an integer without trailing zeros and a power
// of ten: 120, 1.2e2 and 12e1 are 12e1. Nothing is computed but the power.
func canonicalNumber(n string) (string, error) {
	rest, negative := strings.CutPrefix(n, "-")
	exponent := int64(0)
	mantissa, power := rest, ""
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa, power = rest[:i], rest[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return "0", nil // -0, too, and whatever its power
	}
	if power != "" {
		sign := ""
		if power[0] == '-' {
			sign = "-"
		}
		power = strings.TrimLeft(strings.TrimLeft(power, "+-"), "0")
		if len(power) > maxExponent {
			return "", fmt.Errorf("a number's exponent has %d digits", len(power))
		}
		if power != "" {
			var err error
			if exponent, err = strconv.ParseInt(sign+power, 10, 64); err != nil {
				return "", errors.New("a number's exponent is malformed")
			}
		}
	}
	trimmed := strings.TrimRight(digits, "0")
	exponent += int64(len(digits) - len(trimmed) - len(fraction))
	if negative {
		trimmed = "-" + trimmed
	}
	if exponent == 0 {
		return trimmed, nil
	}
	return trimmed + "e" + strconv.FormatInt(exponent, 10), nil
}
