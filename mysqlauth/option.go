// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"fmt"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Option changes a default. Options are checked by the constructor, before
// any I/O.
type Option interface{ apply(*options) }

type option func(*options)

func (o option) apply(to *options) { o(to) }

// WithLogger sets where the driver reports what an operator should know.
// Default: nothing is logged.
func WithLogger(l *zap.Logger) Option {
	return option(func(o *options) { o.logger = l })
}

// WithTimeout sets how long a claim or a look may take on the server; a
// renewal has a sixth of its TTL. From 10 ms to 1 min. A call without a deadline
// returns within twice that, and within a second. Default: 500 ms.
func WithTimeout(d time.Duration) Option {
	return option(func(o *options) { o.timeout = d })
}

// WithMaxOpenConns sets the size of the pool that Open makes, at least 7: one
// connection for each lane and the settler, one for the work outside them, the
// rest for what waits for locked rows. Default: 8.
func WithMaxOpenConns(n int) Option {
	return option(func(o *options) { o.maxOpen = n })
}

// WithTablePrefix puts letters, digits and underscores, at most 40, before the
// names of the tables. Default: none.
func WithTablePrefix(prefix string) Option {
	return option(func(o *options) { o.prefix = prefix })
}

// WithUnsafeDurability lets Check accept a server that may forget what it has
// committed, and with it who holds what and which fences were given. Default:
// such a server is refused.
func WithUnsafeDurability() Option {
	return option(func(o *options) { o.unsafe = true })
}

// WithRetention sets how long a row outlives its last use. At least 1 min.
// Default: 24 h.
func WithRetention(d time.Duration) Option {
	return option(func(o *options) { o.retention = d })
}

// WithSweepInterval sets how often rows past their retention are looked for;
// one process at a time does it, and 0 leaves it to others. Default: 5 min.
func WithSweepInterval(d time.Duration) Option {
	return option(func(o *options) { o.sweepEvery = d })
}

type options struct {
	logger     *zap.Logger
	timeout    time.Duration
	maxOpen    int
	prefix     string
	unsafe     bool
	retention  time.Duration
	sweepEvery time.Duration
	shown      func(key string) string
	registerer prometheus.Registerer
}

const (
	// ownConns are those of the four lanes and the settler.
	ownConns = 5
	// minConns has one more for what waits for a row, and one for what does not.
	minConns = ownConns + 2
)

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9_]{0,40}$`)

// WithKeyRedactor sets what stands for a key in logs. Default: the key itself.
func WithKeyRedactor(redact func(key string) string) Option {
	return option(func(o *options) {
		if redact != nil {
			o.shown = redact
		}
	})
}

func newOptions(opts []Option) (options, error) {
	o := options{
		timeout:    500 * time.Millisecond,
		maxOpen:    8,
		retention:  24 * time.Hour,
		sweepEvery: 5 * time.Minute,
		shown:      func(key string) string { return key },
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.logger == nil {
		o.logger = zap.NewNop()
	}
	o.logger = o.logger.Named("tierlock")
	return o, o.validate()
}

func (o *options) validate() error {
	switch {
	case o.timeout < 10*time.Millisecond || o.timeout > time.Minute:
		return fmt.Errorf("%w: timeout %v is not within 10ms and 1m", ErrOption, o.timeout)
	case o.maxOpen < minConns:
		return fmt.Errorf("%w: %d connections are too few, at least %d are needed", ErrOption, o.maxOpen, minConns)
	case !prefixForm.MatchString(o.prefix):
		return fmt.Errorf("%w: table prefix %q is not at most 40 letters, digits and underscores", ErrOption, o.prefix)
	case o.retention < time.Minute:
		return fmt.Errorf("%w: retention %v is below 1m", ErrOption, o.retention)
	case o.sweepEvery < 0:
		return fmt.Errorf("%w: sweep interval %v is negative", ErrOption, o.sweepEvery)
	}
	return nil
}
