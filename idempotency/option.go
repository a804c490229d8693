// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"fmt"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Option changes a default. Options are checked by [New], before any I/O.
type Option interface{ apply(*options) }

type option func(*options)

func (o option) apply(to *options) { o(to) }

// WithNamespace sets what precedes every key, so that services may share a
// database. It is that of the locker: a lease of another namespace is
// [ErrWrongKey]. Default: "default", as the locker's.
func WithNamespace(namespace string) Option {
	return option(func(o *options) { o.namespace = namespace })
}

// WithTablePrefix puts letters, digits and underscores, at most 40, before the
// names of the tables. Default: none.
func WithTablePrefix(prefix string) Option {
	return option(func(o *options) { o.prefix = prefix })
}

// WithRetention sets how long answers are kept for requests without a TTL, from
// 1 ms to ten years, and not under the attempt time. Once it has passed the same
// key is a new request. Default: 72 h, which a weekend is not longer than.
func WithRetention(d time.Duration) Option {
	return option(func(o *options) { o.retention = d })
}

// WithForbidReuse keeps of an answer past its retention that there was one: the
// same key is then [ErrSpent] for ever. Default: it is a new request.
func WithForbidReuse() Option {
	return option(func(o *options) { o.forbidReuse = true })
}

// WithScopeRequired refuses requests without a scope, for services whose clients
// draw their keys apart from each other. Default: a scope may be empty.
func WithScopeRequired() Option {
	return option(func(o *options) { o.scopeRequired = true })
}

// WithMaxResult sets how many bytes an answer may have, up to 1 GiB; the server's
// max_allowed_packet must have room for it, which [Guard.Check] looks at.
// Default: 1 MiB.
func WithMaxResult(bytes int) Option {
	return option(func(o *options) { o.maxResult = bytes })
}

// WithAttemptTime sets how long one step of a [Guard.Reserve] may take before
// another process may take its request over, from 1 s to 24 h. Default: 1 min.
func WithAttemptTime(d time.Duration) Option {
	return option(func(o *options) { o.attemptTime = d })
}

// WithHighWater is for a business database that is not the lock's: tenures are
// then proved by the highest fence that the business database has seen of the
// key, instead of by the lease row. See [Guard.Claim]. Default: the lease row.
func WithHighWater() Option {
	return option(func(o *options) { o.highWater = true })
}

// WithReapInterval sets how often answers past their retention are looked for, in
// the background, from 1 s; 0 leaves it to others (see [Guard.Reap]). Default:
// 1 min.
func WithReapInterval(d time.Duration) Option {
	return option(func(o *options) { o.reapEvery = d })
}

// WithLogger sets where the guard reports what an operator should know. Keys are
// not logged. Default: nothing is logged.
func WithLogger(l *zap.Logger) Option {
	return option(func(o *options) { o.logger = l })
}

// WithMetrics registers what the guard counts: tierlock_idempotency_total by
// outcome, and tierlock_fence_rejected_total. Guards that share a registerer
// count together. Default: nothing is counted.
func WithMetrics(r prometheus.Registerer) Option {
	return option(func(o *options) { o.registerer = r })
}

type options struct {
	namespace     string
	prefix        string
	retention     time.Duration
	forbidReuse   bool
	scopeRequired bool
	maxResult     int
	attemptTime   time.Duration
	highWater     bool
	reapEvery     time.Duration
	logger        *zap.Logger
	registerer    prometheus.Registerer
}

var (
	namespacePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
	prefixPattern    = regexp.MustCompile(`^[A-Za-z0-9_]{0,40}$`)
)

const mostResult = 1 << 30

func newOptions(opts []Option) (options, error) {
	o := options{
		namespace:   "default",
		retention:   72 * time.Hour,
		maxResult:   1 << 20,
		attemptTime: time.Minute,
		reapEvery:   time.Minute,
		logger:      zap.NewNop(),
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.logger == nil {
		o.logger = zap.NewNop()
	}
	return o, o.check()
}

func (o *options) check() error {
	switch {
	case !namespacePattern.MatchString(o.namespace):
		return fmt.Errorf("%w: namespace %q must match %v", ErrOption, o.namespace, namespacePattern)
	case !prefixPattern.MatchString(o.prefix):
		return fmt.Errorf("%w: table prefix %q must match %v", ErrOption, o.prefix, prefixPattern)
	case o.maxResult < 0 || o.maxResult > mostResult:
		return fmt.Errorf("%w: max result %d, from 0 to %d are possible", ErrOption, o.maxResult, mostResult)
	case o.attemptTime < time.Second || o.attemptTime > 24*time.Hour:
		return fmt.Errorf("%w: attempt time %v, from 1s to 24h are possible", ErrOption, o.attemptTime)
	case o.retention < minTTL || o.retention > maxTTL:
		return fmt.Errorf("%w: %v, from %v to %v are possible", ErrBadRetention, o.retention, minTTL, maxTTL)
	case o.retention < o.attemptTime:
		return fmt.Errorf("%w: %v is under the attempt time, %v: an answer would be gone before its attempt", ErrBadRetention, o.retention, o.attemptTime)
	case o.reapEvery != 0 && o.reapEvery < time.Second:
		return fmt.Errorf("%w: reap interval %v is under 1s", ErrOption, o.reapEvery)
	}
	return nil
}
