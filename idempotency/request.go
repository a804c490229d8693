// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tierlock/tierlock/tier"
)

const (
	maxKey         = 255
	maxFingerprint = 64
	// minTTL is the shortest time that the server keeps apart from none.
	minTTL = time.Millisecond
	maxTTL = 10 * 365 * 24 * time.Hour

	defaultWait = 200 * time.Millisecond
)

// Request says under which key a write happens once.
type Request struct {
	// Key is the client's idempotency key: 1 to 255 bytes of UTF-8 without
	// control characters. Keys are compared byte by byte.
	Key string
	// Scope is whose key it is, a tenant say: the same key of another scope is
	// another key. At most 255 bytes; may be empty.
	Scope string
	// Fingerprint says what is asked for, so that a key that comes again with
	// something else is [ErrMismatch]: see [Fingerprint]. 1 to 64 bytes.
	Fingerprint []byte
	// TTL is how long the answer is kept, from 1 ms; after that the same key is
	// a new request. Default: the guard's retention.
	TTL time.Duration
	// Wait is how long to wait for an attempt that is under way before
	// [ErrInProgress] is returned; negative for not at all. Default: 200 ms.
	Wait time.Duration
	// Codec says how the answer is encoded, for the caller's own use: an answer
	// that was stored under another codec is [ErrResultUndecodable].
	Codec uint16
	// MaxResult is how many bytes the answer will have at most, where that is
	// known: a request for more than the guard stores is refused before anything
	// is done.
	MaxResult int
	// LockKey is the key, as given to Acquire, of the lock that protects what is
	// written. A lease of another key is then [ErrWrongKey]. Of several leases
	// one must have it. Default: any.
	LockKey string
	// Leases are further leases whose tenures the write proves, in any order:
	// those of [tier.Locker.AcquireAll], say.
	Leases []*tier.Lease
	// AllowUnfenced lets a lease without a fence pass: the write then happens
	// once, but perhaps beside another holder's.
	AllowUnfenced bool
}

// Result is the answer of a guarded write.
type Result struct {
	// Body is what the write returned, byte by byte.
	Body []byte
	// Replayed reports that an earlier call has done the write.
	Replayed bool
	// CompletedAt is when a replayed answer was stored, by the server's clock.
	CompletedAt time.Time
}

// check refuses, before any I/O, what can never work.
func (r Request) check(g *Guard) error {
	if err := checkText("key", r.Key); err != nil {
		return err
	}
	if r.Scope == "" && g.options.scopeRequired {
		return fmt.Errorf("%w: the guard wants one for every request", ErrScopeMissing)
	}
	if r.Scope != "" {
		if err := checkText("scope", r.Scope); err != nil {
			return err
		}
	}
	switch n := len(r.Fingerprint); {
	case n == 0:
		return fmt.Errorf("%w: without one a key that comes again with another payload would be answered", ErrFingerprintMissing)
	case n > maxFingerprint:
		return fmt.Errorf("%w: fingerprint has %d bytes, at most %d are stored", ErrOption, n, maxFingerprint)
	}
	if r.TTL != 0 && (r.TTL < minTTL || r.TTL > maxTTL) {
		return fmt.Errorf("%w: %v, from %v to %v are possible", ErrBadTTL, r.TTL, minTTL, maxTTL)
	}
	if r.MaxResult < 0 || r.MaxResult > g.options.maxResult {
		return fmt.Errorf("%w: up to %d bytes are announced, the guard stores %d", ErrResultTooLarge, r.MaxResult, g.options.maxResult)
	}
	return nil
}

// checkText refuses what headers and logs could not carry.
func checkText(what, s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("%w: %s is empty", ErrKeyMissing, what)
	case len(s) > maxKey:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrKeyTooLong, what, len(s), maxKey)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not UTF-8", ErrKeyInvalid, what)
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%w: %s has control characters", ErrKeyInvalid, what)
	}
	return nil
}

func (r Request) ttl(g *Guard) time.Duration { return cmp.Or(r.TTL, g.options.retention) }

func (r Request) wait() time.Duration { return max(0, cmp.Or(r.Wait, defaultWait)) }

// proofs are the leases to prove, in the order of their keys, each tenure once.
func (r Request) proofs(g *Guard, lease *tier.Lease) ([]*tier.Lease, error) {
	var all []*tier.Lease
	if lease != nil {
		all = append(all, lease)
	}
	all = append(all, r.Leases...)
	right := r.LockKey == "" || len(all) == 0
	for _, l := range all {
		if l == nil {
			return nil, fmt.Errorf("%w: a lease is nil", ErrOption)
		}
		if err := g.checkNamespace(l); err != nil {
			return nil, err
		}
		right = right || l.Key() == r.LockKey
	}
	if !right {
		return nil, fmt.Errorf("%w: %q, the write is protected by %q", ErrWrongKey, all[0].Key(), r.LockKey)
	}
	fenced := all[:0:0]
	for _, l := range all {
		if l.Fence() == 0 && r.AllowUnfenced {
			continue
		}
		if err := g.provable(l); err != nil {
			return nil, err
		}
		fenced = append(fenced, l)
	}
	slices.SortFunc(fenced, func(a, b *tier.Lease) int { return cmp.Compare(a.Tenure().Key, b.Tenure().Key) })
	return slices.CompactFunc(fenced, func(a, b *tier.Lease) bool { return a.Tenure() == b.Tenure() }), nil
}
