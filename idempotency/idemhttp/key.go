// SPDX-License-Identifier: Apache-2.0

package idemhttp

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/tierlock/tierlock/idempotency"
)

const keyHeader = "Idempotency-Key"

const maxKey = 255

// requestKey is the one key of a request. "a" and a are the same.
func requestKey(h http.Header) (string, error) {
	values := h.Values(keyHeader)
	switch len(values) {
	case 0:
		return "", fmt.Errorf("%w: the header is missing", idempotency.ErrKeyMissing)
	case 1:
	default:
		return "", fmt.Errorf("%w: %d headers, one is allowed", idempotency.ErrKeyInvalid, len(values))
	}
	value := strings.Trim(values[0], " \t")
	key, err := bare(value)
	if strings.HasPrefix(value, `"`) {
		key, err = quoted(value)
	}
	switch {
	case err != nil:
		return "", err
	case strings.TrimSpace(key) == "":
		return "", fmt.Errorf("%w: the header is empty", idempotency.ErrKeyMissing)
	case len(key) > maxKey:
		return "", fmt.Errorf("%w: %d bytes, at most %d are allowed", idempotency.ErrKeyTooLong, len(key), maxKey)
	}
	return key, nil
}

// quoted reads a structured field's string (RFC 9651), without parameters.
func quoted(value string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(value); i++ {
		c := value[i]
		switch {
		case c == '"' && i == len(value)-1:
			return key.String(), nil
		case c == '"':
			return "", fmt.Errorf("%w: something follows the closing quote", idempotency.ErrKeyInvalid)
		case c == '\\':
			i++
			if i == len(value) || value[i] != '"' && value[i] != '\\' {
				return "", fmt.Errorf("%w: a backslash escapes nothing", idempotency.ErrKeyInvalid)
			}
			key.WriteByte(value[i])
		case c < ' ' || c > '~':
			return "", fmt.Errorf("%w: it is not printable ASCII", idempotency.ErrKeyInvalid)
		default:
			key.WriteByte(c)
		}
	}
	return "", fmt.Errorf("%w: the closing quote is missing", idempotency.ErrKeyInvalid)
}

// bare refuses what could be two headers in one, or the half of a string.
func bare(value string) (string, error) {
	if strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`",;\`, c) }) {
		return "", fmt.Errorf("%w: without quotes it is printable ASCII, but for space, comma, semicolon, quote and backslash", idempotency.ErrKeyInvalid)
	}
	return value, nil
}
