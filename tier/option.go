// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier/driver"
)

const (
	minTTL       = 500 * time.Millisecond
	maxTTL       = 24 * time.Hour
	maxKey       = 255
	maxHolder    = 128
	maxNamespace = 63

	defaultTTL        = 10 * time.Second
	defaultWait       = 3 * time.Second
	defaultMaxHold    = 5 * time.Minute
	defaultHandoffs   = 16_384
	defaultHandoffFor = 100 * time.Millisecond
	defaultGiveWay    = 5 * time.Millisecond
	maxHandoffs       = 65_536
	defaultMaxWaiters = 10_000
	defaultNamespace  = "default"
)

var namespacePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// Option configures a [Locker].
type Option interface{ applyLocker(*settings) }

// AcquireOption configures one call. Those that are also an [Option] set the
// locker's default.
type AcquireOption interface{ applyAcquire(*terms) }

// Setting is both an [Option] and an [AcquireOption].
type Setting interface {
	Option
	AcquireOption
}

// settings is what a Locker is built with.
type settings struct {
	log        *zap.Logger
	namespace  string
	drain      time.Duration
	maxWaiters int
	redact     func(key string) string
	terms      terms
	policies   []Policy
	breaker    breaker.Settings
	registerer prometheus.Registerer
}

// terms is what one lease is asked for with, and keeps to its end.
type terms struct {
	ttl     time.Duration
	wait    time.Duration
	once    bool          // look once, within wait
	minTTL  time.Duration // what the authority's speed allows
	maxHold time.Duration // 0: no bound
	minHold time.Duration // 0: none
	holder  string
	// What is held may pass to so many tenures of this process, for so long, and
	// then the process waits a moment for the others.
	handoffs   int
	handoffFor time.Duration
	giveWay    time.Duration
}

func defaults() settings {
	return settings{
		log:        zap.NewNop(),
		namespace:  defaultNamespace,
		maxWaiters: defaultMaxWaiters,
		redact:     func(key string) string { return key },
		terms: terms{
			ttl: defaultTTL, wait: defaultWait, maxHold: defaultMaxHold, holder: processName(),
			handoffs: defaultHandoffs, handoffFor: defaultHandoffFor, giveWay: defaultGiveWay,
		},
	}
}

// processName tells people who holds a key; it decides nothing.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	name := fmt.Sprintf("%s/%d/%s", host, os.Getpid(), driver.NewToken().String()[:6])
	return name[max(0, len(name)-maxHolder):]
}

func (s *settings) validate() error {
	if len(s.namespace) > maxNamespace {
		return optionError("namespace %q has %d bytes, at most %d are allowed", s.namespace, len(s.namespace), maxNamespace)
	}
	if !namespacePattern.MatchString(s.namespace) {
		return optionError("namespace %q must match [a-z0-9_-]{1,63}", s.namespace)
	}
	if s.drain < 0 {
		return optionError("drain %v is negative", s.drain)
	}
	if s.maxWaiters < 1 {
		return optionError("max waiters %d is under 1", s.maxWaiters)
	}
	return s.terms.validate()
}

func (t *terms) validate() error {
	switch {
	case t.ttl < minTTL:
		return optionError("ttl %v is under %v", t.ttl, minTTL)
	case t.ttl < t.minTTL:
		return optionError("ttl %v is under %v, twice the authority's timeout", t.ttl, t.minTTL)
	case t.ttl > maxTTL:
		return optionError("ttl %v is above %v", t.ttl, maxTTL)
	case t.wait < 0:
		return optionError("wait %v is negative", t.wait)
	case t.maxHold < 0:
		return optionError("max hold %v is negative", t.maxHold)
	case t.minHold < 0:
		return optionError("min hold %v is negative", t.minHold)
	case t.minHold > maxTTL:
		return optionError("min hold %v is above %v", t.minHold, maxTTL)
	case t.handoffs < 1 || t.handoffs > maxHandoffs:
		return optionError("handoffs %d, from 1 to %d are possible", t.handoffs, maxHandoffs)
	case t.handoffFor < 0 || t.giveWay < 0:
		return optionError("handoff for %v, give way %v: neither may be negative", t.handoffFor, t.giveWay)
	case t.holder == "":
		return optionError("holder is empty")
	case len(t.holder) > maxHolder:
		return optionError("holder has %d bytes, at most %d are allowed", len(t.holder), maxHolder)
	}
	return nil
}

// with returns the terms changed by options.
func (t terms) with(options []AcquireOption) terms {
	if len(options) == 0 {
		return t
	}
	return t.changed(options)
}

// changed is apart from with, so that terms without options stay off the heap.
func (t terms) changed(options []AcquireOption) terms {
	for _, o := range options {
		if o != nil {
			o.applyAcquire(&t)
		}
	}
	return t
}

// lookOnce returns the terms of a call that does not wait for a holder, and has
// its answer within a second, or the wait where that is shorter.
func (t terms) lookOnce() terms {
	if t.wait == 0 {
		t.wait = boundWithoutContext
	}
	t.once, t.wait = true, min(t.wait, boundWithoutContext)
	return t
}

// margin is how long before its expiry a lease counts as lost: twice what the
// server's clock may drift or step meanwhile (promise P4).
func (t *terms) margin() time.Duration { return margin(t.ttl) }

func margin(ttl time.Duration) time.Duration { return max(ttl/10, 50*time.Millisecond) }

type lockerOption func(*settings)

func (f lockerOption) applyLocker(s *settings) { f(s) }

type setting func(*terms)

func (f setting) applyLocker(s *settings) { f(&s.terms) }
func (f setting) applyAcquire(t *terms)   { f(t) }

type acquireOption func(*terms)

func (f acquireOption) applyAcquire(t *terms) { f(t) }

// WithLogger sets where the locker logs; nil means nowhere. Default: nowhere.
func WithLogger(log *zap.Logger) Option {
	return lockerOption(func(s *settings) {
		if log == nil {
			log = zap.NewNop()
		}
		s.log = log.Named("tierlock")
	})
}

// WithNamespace sets what precedes every key in both tiers, so that services
// can share servers: 1 to 63 of a-z, 0-9, "_" and "-". Default: "default".
func WithNamespace(namespace string) Option {
	return lockerOption(func(s *settings) { s.namespace = namespace })
}

// WithDrain sets how long Close keeps renewing what is still held before it
// cancels the holders' contexts. Default: 0.
func WithDrain(d time.Duration) Option {
	return lockerOption(func(s *settings) { s.drain = d })
}

// WithTTL sets how long a lease lasts without renewal: from 500 ms, or twice the
// authority's timeout where that is more, to 24 h.
// A holder that dies blocks its key for that long. Default: 10 s.
func WithTTL(d time.Duration) Setting {
	return setting(func(t *terms) { t.ttl = d })
}

// WithWait sets how long Acquire waits for a key; 0 means one look.
// Default: 3 s.
func WithWait(d time.Duration) Setting {
	return setting(func(t *terms) { t.wait = d })
}

// WithHolder sets the name shown to people for the holder of a lease, 1 to 128
// bytes. It decides nothing. Default: host, process id and a random part.
func WithHolder(name string) Setting {
	return setting(func(t *terms) { t.holder = name })
}

// WithMaxHold bounds how long a lease may be held, renewals included; 0 means
// without bound. At the bound its context ends with [ErrMaxHold], an error is
// logged, and it is renewed no more: the key is free when the holder releases,
// or when the lease expires. Default: 5 min.
func WithMaxHold(d time.Duration) Setting {
	return setting(func(t *terms) { t.maxHold = d })
}

// WithHandoffs sets through how many tenures of this process a lease may pass, one
// after another, without a server, while callers of this process are in line: so many
// fences are reserved with each grant. From 1, which is no hand-off, to 65,536.
// Default: 16,384.
func WithHandoffs(n int) Setting {
	return setting(func(t *terms) { t.handoffs = n })
}

// WithHandoffFor sets how long a lease is handed on inside this process before
// other processes get their turn. Default: 100 ms.
func WithHandoffFor(d time.Duration) Setting {
	return setting(func(t *terms) { t.handoffFor = d })
}

// WithGiveWay sets how long this process then leaves the key to the others before
// it asks for it again. Default: 5 ms.
func WithGiveWay(d time.Duration) Setting {
	return setting(func(t *terms) { t.giveWay = d })
}

// WithMinHold keeps the key from being granted again for d after this grant,
// even when it is released earlier: of many processes that try a scheduled job
// once, one runs it. At most 24 h. A process that dies before it releases falls
// back to the TTL. Default: 0.
func WithMinHold(d time.Duration) AcquireOption {
	return acquireOption(func(t *terms) { t.minHold = d })
}

// WithMaxWaiters bounds how many callers of this process may wait for one key;
// beyond it [ErrHeld] comes at once. Default: 10,000.
func WithMaxWaiters(n int) Option {
	return lockerOption(func(s *settings) { s.maxWaiters = n })
}

// WithBreaker sets when a tier counts as out, for both tiers. Default: that of
// [breaker.Settings].
func WithBreaker(b breaker.Settings) Option {
	return lockerOption(func(s *settings) { s.breaker = b })
}

// WithKeyRedactor sets what stands for a key in logs, for keys that name
// people or accounts. Errors name the key: they are the caller's own. Default:
// the key itself.
func WithKeyRedactor(redact func(key string) string) Option {
	return lockerOption(func(s *settings) {
		if redact != nil {
			s.redact = redact
		}
	})
}
