// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// pair is a claim's name: a key and the full token.
type pair struct {
	key   string
	token driver.Token
}

// keyArgs are the args of a list of keys.
func (t tables) keyArgs(keys []string) []any {
	size := 0
	for _, key := range keys {
		size += len(key)
	}
	text := make([]byte, 0, size)
	args := make([]any, t.padded(len(keys)))
	for i, key := range keys {
		at := len(text)
		text = append(text, key...)
		args[i] = text[at:len(text):len(text)]
	}
	pad(args, len(keys))
	return args
}

// pairArgs are the args of pairs.
func (t tables) pairArgs(ps []pair) []any {
	size := 0
	for _, p := range ps {
		size += len(p.key) + len(p.token)
	}
	text := make([]byte, 0, size)
	n := t.padded(len(ps))
	args := make([]any, 2*n, 2*n+8)
	for i, p := range ps {
		at := len(text)
		text = append(append(text, p.key...), p.token[:]...)
		end := at + len(p.key)
		args[i], args[n+i] = text[at:end:end], text[at:len(text):len(text)]
	}
	pad(args[:n], len(ps))
	pad(args[n:], len(ps))
	return args
}

// pad repeats the last of the n elements that there are.
func pad(args []any, n int) {
	for i := n; i < len(args); i++ {
		args[i] = args[n-1]
	}
}

// reserved begins the keys that the driver claims for itself. A namespace
// never begins with a zero byte, so no user's key does.
const reserved = "\x00tierlock/"

const (
	maxKey    = 320
	maxHolder = 128
	maxBlock  = 1 << 16
	maxTTL    = 366 * 24 * time.Hour
)

// checkKey keeps one bad key from failing a statement that others share.
func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w: %d bytes with the namespace, more than %d", ErrKey, len(key), maxKey)
	case len(key) >= len(reserved) && key[:len(reserved)] == reserved:
		return fmt.Errorf("%w: it begins like the driver's own", ErrKey)
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond || ttl > maxTTL {
		return fmt.Errorf("%w: TTL %v is not within 1ms and %v", ErrValue, ttl, maxTTL)
	}
	return nil
}

// renewArgs are those of a renewal.
func (t tables) renewArgs(ours []pair, notAfter int64, ttl time.Duration) []any {
	micros := ttl.Microseconds()
	return append(t.pairArgs(ours), notAfter, micros, micros, micros)
}

func checkClaim(c driver.Claim) error {
	if err := checkKey(c.Key); err != nil {
		return err
	}
	switch {
	case len(c.Holder) > maxHolder:
		return fmt.Errorf("%w: holder of %d bytes, more than %d", ErrValue, len(c.Holder), maxHolder)
	case c.Block < 1 || c.Block > maxBlock:
		return fmt.Errorf("%w: block %d is not within 1 and %d", ErrValue, c.Block, maxBlock)
	}
	return checkTTL(c.TTL)
}

func checkRelease(r driver.Release) error {
	if r.MinHold < 0 || r.MinHold > maxTTL {
		return fmt.Errorf("%w: least hold %v is not within 0 and %v", ErrValue, r.MinHold, maxTTL)
	}
	return checkKey(r.Key)
}

// sortedKeys puts keys into the order of their bytes, in which every statement
// takes its rows.
func sortedKeys(keys []string) []string {
	slices.SortFunc(keys, func(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) })
	return keys
}
