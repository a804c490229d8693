// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

// Locker grants leases. It is safe for concurrent use. One per process and
// namespace is what callers of the same keys should share: it is what keeps
// them in line without asking a server.
type Locker struct {
	filter    driver.Filter // nil: the authority alone
	authority driver.Authority
	settings  settings
	log       *zap.Logger

	rows     grantor // the authority, as what stands behind a tenure
	policies atomic.Pointer[policySet]
	queues   *queues
	refusals *refusals
	renewer  *renewer
	ready    readiness
	behind   background
	soon     soon
	local    fallback.ReentrantMutex // of the rung local
	timers   sync.Pool               // stopped; who waits in a hot line needs one for microseconds

	authorityHealth, filterHealth *breaker.Health // the filter's is nil where there is none

	metrics   *metrics   // nil: none
	reloading sync.Mutex // one SetPolicies at a time

	closing context.Context // ends when Close begins
	close   context.CancelCauseFunc
	begun   atomic.Bool   // a Close does the work
	closed  chan struct{} // closed when it is done
}

// New composes a locker from a filter and an authority. A nil filter means the
// authority alone. The locker owns both from now on: Close closes them.
//
// New sends nothing. [Locker.Check] asks the servers the start-up questions;
// where nobody called it, the first acquire does.
//
// Defaults: [WithTTL] 10 s, [WithWait] 3 s, [WithDrain] 0, [WithNamespace]
// "default", [WithMaxHold] 5 min, [WithMaxWaiters] 10,000, no logger. Errors: [ErrOption].
func New(filter driver.Filter, authority driver.Authority, options ...Option) (*Locker, error) {
	s := defaults()
	for _, o := range options {
		if o != nil {
			o.applyLocker(&s)
		}
	}
	if authority == nil {
		return nil, optionError("authority is nil; only the filter may be")
	}
	s.terms.minTTL = 2 * authority.Timeout()
	if err := s.validate(); err != nil {
		return nil, err
	}
	l := &Locker{
		filter: filter, authority: authority, settings: s, log: s.log,
		queues: newQueues(s.maxWaiters), refusals: newRefusals(), closed: make(chan struct{}),
	}
	l.rows = &rowGrantor{authority}
	l.closing, l.close = context.WithCancelCause(context.Background())
	l.renewer = newRenewer(l)
	var err error
	if l.metrics, err = register(s.registerer); err != nil {
		return nil, err
	}
	if err := l.watchTiers(); err != nil {
		return nil, err
	}
	if err := l.SetPolicies(s.policies...); err != nil {
		l.stopWatching()
		return nil, err
	}
	return l, nil
}

// Check asks both tiers whether they can be relied on: that the authority's
// tables are there and its server is writable, durable and no replica. It is
// worth calling at start, where an error can stop a deployment. A filter that
// does not answer is logged, not returned: the lock works without it.
func (l *Locker) Check(ctx context.Context) error {
	l.behind.begin()
	defer l.behind.done()
	if l.closing.Err() != nil {
		return &Error{Op: "check", Err: ErrClosed}
	}
	if err := l.ready.check(ctx, l); err != nil {
		return &Error{Op: "check", Err: err}
	}
	return nil
}

// Acquire waits for the key, up to [WithWait], and returns its lease. The
// context bounds the wait only; the lease lives until it is released or lost,
// whatever becomes of ctx.
//
// Errors, all in an [*Error]: [ErrHeld] when the wait ended; [ErrUnavailable]
// when the authority did not answer; [ErrClosed]; [ErrKey]; [ErrOption]; the
// context's error when ctx ended. A ctx that carries a lease of the key returns
// another handle on it at once, on the terms it has, also while Close drains;
// only a longer [WithMinHold] than it has is an [ErrOption]. After any error
// nothing is held: what a request still on its way might be granted is freed
// within a second.
func (l *Locker) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Lease, error) {
	return l.one(ctx, key, ask{options: options})
}

// TryAcquire looks once: [ErrHeld] comes at once, any answer within a second.
// Otherwise it is Acquire.
func (l *Locker) TryAcquire(ctx context.Context, key string, options ...AcquireOption) (*Lease, error) {
	return l.one(ctx, key, ask{options: options, once: true})
}

// one is an acquire whose answer is the caller's.
func (l *Locker) one(ctx context.Context, key string, asked ask) (*Lease, error) {
	began := l.metrics.clock()
	lease, err := l.acquire(ctx, key, asked)
	l.told(began, lease, err)
	return lease, err
}

// Do acquires the key, runs f and releases, also when f panics or calls
// runtime.Goexit. The context given to f ends with ctx and with the lease. The
// error joins f's and the release's: [ErrLost] means that f may have run on
// after another was granted the key, and that only its guarded writes are safe.
func (l *Locker) Do(ctx context.Context, key string, f func(context.Context, *Lease) error, options ...AcquireOption) (err error) {
	lease, err := l.Acquire(ctx, key, options...)
	if err != nil {
		return err
	}
	return within(ctx, Leases{lease}, func(ctx context.Context) error { return f(ctx, lease) })
}

// within runs f with a context that ends with the caller's and with each lease,
// and releases however f ends.
func within(ctx context.Context, leases Leases, f func(context.Context) error) (err error) {
	inner, cancel := leases.join(ctx)
	defer func() {
		cancel()
		err = errors.Join(err, leases.Release(ctx))
	}()
	return f(inner)
}

func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed; it begins with %.64q", ErrKey, len(key), maxKey, key)
	}
	return nil
}

// fullKey puts the namespace before a key.
func (l *Locker) fullKey(key string) string { return l.settings.namespace + "/" + key }

// releaseBehind frees what nobody will ever hold.
func (l *Locker) releaseBehind(by grantor, r driver.Release) {
	l.behind.run(func() {
		ctx, cancel := context.WithTimeout(context.Background(), boundWithoutContext)
		defer cancel()
		// Any answer will do: freed, not ours any more, or the driver goes on.
		_ = by.Release(ctx, r)
	})
}

// shown is what stands for a key in logs.
func (l *Locker) shown(key string) string { return l.settings.redact(key) }
