// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// ErrOption is in the chain of every error about a value that cannot be used:
// an option, a URL, a mark's time to live or token. The text names the value,
// except where it could hold a password.
var ErrOption = errors.New("redisfast: invalid option")

const (
	defaultTimeout = 200 * time.Millisecond
	defaultPrefix  = "tierlock:"

	minTimeout = time.Millisecond
	// maxTimeout is what promise P10 leaves to a call that nobody bounds.
	maxTimeout = time.Second
	maxPrefix  = 64
)

// Option changes how a Filter works. Options are made by this package only.
type Option interface {
	apply(*options)
}

type options struct {
	timeout time.Duration
	prefix  string
	logger  *zap.Logger
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// WithTimeout bounds each call to the server, whatever the client's own limits
// are; from 1 ms to 1 s. Default: 200 ms.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(o *options) { o.timeout = d })
}

// WithPrefix is put before every key and channel; at most 64 bytes. All
// processes that compete for a key need the same one. Default: "tierlock:".
func WithPrefix(prefix string) Option {
	return optionFunc(func(o *options) { o.prefix = prefix })
}

// WithLogger receives what operators should know. Default: nothing is logged,
// as with nil.
func WithLogger(l *zap.Logger) Option {
	return optionFunc(func(o *options) { o.logger = l })
}

// newOptions applies and validates opts.
func newOptions(opts []Option) (options, error) {
	o := options{timeout: defaultTimeout, prefix: defaultPrefix}
	for i, opt := range opts {
		if opt == nil {
			return o, fmt.Errorf("%w: option %d is nil", ErrOption, i)
		}
		opt.apply(&o)
	}
	if o.logger == nil {
		o.logger = zap.NewNop()
	}
	o.logger = o.logger.Named("tierlock")
	var errs []error
	if o.timeout < minTimeout || o.timeout > maxTimeout {
		errs = append(errs, fmt.Errorf("%w: timeout %v is not between %v and %v",
			ErrOption, o.timeout, minTimeout, maxTimeout))
	}
	if len(o.prefix) > maxPrefix {
		errs = append(errs, fmt.Errorf("%w: prefix %q is longer than %d bytes",
			ErrOption, o.prefix, maxPrefix))
	}
	return o, errors.Join(errs...)
}
