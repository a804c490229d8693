// SPDX-License-Identifier: Apache-2.0

package idemhttp

import (
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier"
)

// Option changes a default.
type Option interface{ apply(*options) }

type option func(*options)

func (o option) apply(to *options) { o(to) }

// Outcome is what is done with a response.
type Outcome int

// What can be done with a response.
const (
	// Commit what the handler wrote, and store the response.
	Commit Outcome = iota
	// Refuse rolls back what the handler wrote, and stores the response: a no that
	// stays one.
	Refuse
	// Retry rolls back and stores nothing: the same key may be tried again.
	Retry
)

// WithPolicy sets what is done with a response of a status. Default: the package's.
func WithPolicy(policy func(status int) Outcome) Option {
	return option(func(o *options) { o.policy = policy })
}

// DefaultPolicy is the package's: see its documentation.
func DefaultPolicy(status int) Outcome {
	switch {
	case status < 400:
		return Commit
	case status >= 500, slices.Contains(passing, status):
		return Retry
	}
	return Refuse
}

// passing are the refusals that do not stay.
var passing = []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests}

// WithMethods sets which methods need a key; all others go straight to the handler.
// Default: POST and PATCH.
func WithMethods(methods ...string) Option {
	return option(func(o *options) { o.methods = methods })
}

// WithScope says whose key it is: the tenant or client that the request was
// authenticated as. The same key of another scope is another key; without scopes
// anybody who knows or guesses a key is given its response. An error is a 403,
// unless it is one of package idempotency. Default: all share one scope.
func WithScope(scope func(*http.Request) (string, error)) Option {
	return option(func(o *options) { o.scope = scope })
}

// WithMaxBody sets how many bytes a request's body may have: it is held in memory.
// Default: 1 MiB.
func WithMaxBody(bytes int64) Option {
	return option(func(o *options) { o.maxBody = bytes })
}

// WithMaxResponse sets how many bytes of a body are held back. The guard's own limit
// on what it stores, header included, applies besides. Default: 1 MiB.
func WithMaxResponse(bytes int) Option {
	return option(func(o *options) { o.maxResponse = bytes })
}

// WithWait sets how long to wait for a request with the same key before 409;
// negative for not at all. Default: the guard's, 200 ms.
func WithWait(d time.Duration) Option {
	return option(func(o *options) { o.wait = d })
}

// WithRetention sets how long responses are kept. Default: the guard's.
func WithRetention(d time.Duration) Option {
	return option(func(o *options) { o.retention = d })
}

// WithLock takes locks before each request and proves their tenures in the
// transaction. keys says which, all or none of them (see [tier.Locker.AcquireAll]); it
// may read the body, and returns none where there is nothing to lock. Its error is a
// 400 with the error's text. A lock that others hold is a 409, one that nobody grants
// a 503, both with Retry-After. Default: no lock.
func WithLock(locker *tier.Locker, keys func(*http.Request) ([]string, error)) Option {
	return option(func(o *options) { o.locker, o.lockKeys = locker, keys })
}

// WithDocs sets the address of a page that explains the keys to clients, which
// refusals then link to. Default: none.
func WithDocs(url string) Option {
	return option(func(o *options) { o.docs = url })
}

// WithLogger sets where is said why a response was a 500. Keys are not logged.
// Default: nothing is logged.
func WithLogger(l *zap.Logger) Option {
	return option(func(o *options) { o.logger = l })
}

type options struct {
	policy      func(int) Outcome
	methods     []string
	scope       func(*http.Request) (string, error)
	maxBody     int64
	maxResponse int
	wait        time.Duration
	retention   time.Duration
	locker      *tier.Locker
	lockKeys    func(*http.Request) ([]string, error)
	docs        string
	logger      *zap.Logger
}

// newOptions panics where http.Handle would: the program is wrong before it serves.
func newOptions(opts []Option) options {
	o := options{
		policy:      DefaultPolicy,
		methods:     []string{http.MethodPost, http.MethodPatch},
		scope:       func(*http.Request) (string, error) { return "", nil },
		maxBody:     1 << 20,
		maxResponse: 1 << 20,
		logger:      zap.NewNop(),
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	switch {
	case o.policy == nil:
		panic("idemhttp: WithPolicy: policy is nil")
	case len(o.methods) == 0:
		panic("idemhttp: WithMethods: no method")
	case o.scope == nil:
		panic("idemhttp: WithScope: scope is nil")
	case o.maxBody < 0 || o.maxResponse < 0:
		panic("idemhttp: WithMaxBody, WithMaxResponse: a limit is negative")
	case (o.locker == nil) != (o.lockKeys == nil):
		panic("idemhttp: WithLock: locker or key is nil")
	}
	if o.logger == nil {
		o.logger = zap.NewNop()
	}
	o.logger = o.logger.Named("tierlock")
	return o
}
