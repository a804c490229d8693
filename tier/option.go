// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"fmt"
	"os"
	"regexp"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

const (
	minTTL       = 500 * time.Millisecond
	maxTTL       = 24 * time.Hour
	maxKey       = 255
	maxHolder    = 128
	maxNamespace = 63

	defaultTTL       = 10 * time.Second
	defaultWait      = 3 * time.Second
	defaultNamespace = "default"
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
	log       *zap.Logger
	namespace string
	drain     time.Duration
	terms     terms
}

// terms is what one lease is asked for with, and keeps to its end.
type terms struct {
	ttl    time.Duration
	wait   time.Duration
	holder string
}

func defaults() settings {
	return settings{
		log:       zap.NewNop(),
		namespace: defaultNamespace,
		terms:     terms{ttl: defaultTTL, wait: defaultWait, holder: processName()},
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
	return s.terms.validate()
}

func (t *terms) validate() error {
	switch {
	case t.ttl < minTTL:
		return optionError("ttl %v is under %v", t.ttl, minTTL)
	case t.ttl > maxTTL:
		return optionError("ttl %v is above %v", t.ttl, maxTTL)
	case t.wait < 0:
		return optionError("wait %v is negative", t.wait)
	case t.holder == "":
		return optionError("holder is empty")
	case len(t.holder) > maxHolder:
		return optionError("holder has %d bytes, at most %d are allowed", len(t.holder), maxHolder)
	}
	return nil
}

// margin is how long before its expiry a lease counts as lost: twice what the
// server's clock may drift or step meanwhile (promise P4).
func (t *terms) margin() time.Duration { return max(t.ttl/10, 50*time.Millisecond) }

type lockerOption func(*settings)

func (f lockerOption) applyLocker(s *settings) { f(s) }

type setting func(*terms)

func (f setting) applyLocker(s *settings) { f(&s.terms) }
func (f setting) applyAcquire(t *terms)   { f(t) }

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

// WithTTL sets how long a lease lasts without renewal: from 500 ms to 24 h.
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
