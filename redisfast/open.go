// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Open returns a Filter on a client of its own to one server, which Close
// closes. It sends nothing. The URL is redis://, rediss:// or unix:// as
// [redis.ParseURL] reads it; what its query sets stands, and everything else is
// set so that a call ends with the filter's timeout and a refused connection is
// an answer, not something to wait for.
//
// For Cluster or Sentinel make a client and use [New].
func Open(rawURL string, opts ...Option) (*Filter, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	client, err := newClient(rawURL, o)
	if err != nil {
		return nil, err
	}
	f, err := New(client, opts...)
	if err != nil {
		return nil, err
	}
	f.owned = true
	return f, nil
}

// OpenClient makes the client that [Open] would, for an application that has other
// uses for it: give it to [New]. The caller closes it. It sends nothing.
func OpenClient(rawURL string, opts ...Option) (*redis.Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	return newClient(rawURL, o)
}

func newClient(rawURL string, o options) (*redis.Client, error) {
	ropts, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	bound(ropts, o.timeout)
	return redis.NewClient(ropts), nil
}

// parseURL is redis.ParseURL with errors that hold nothing of the URL: a
// password with a slash or a colon in it turns up as host, port or path.
func parseURL(rawURL string) (*redis.Options, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: the redis URL does not parse; escape what is special in its password", ErrOption)
	}
	switch u.Scheme {
	case "redis", "rediss", "unix":
	default:
		return nil, fmt.Errorf("%w: the redis URL begins with none of redis://, rediss://, unix://", ErrOption)
	}
	ropts, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: the redis URL has a wrong path or query; "+
			"want redis://[user:password@]host[:port][/database][?name=value]", ErrOption)
	}
	return ropts, nil
}

// bound fits what the URL left open to the filter's timeout.
func bound(o *redis.Options, timeout time.Duration) {
	o.ContextTimeoutEnabled = true
	// One dial a try: the default, five in half a second, makes a server that
	// refuses look like one that is silent.
	o.DialerRetries = 1
	setDuration(&o.DialTimeout, timeout)
	setDuration(&o.ReadTimeout, timeout)
	setDuration(&o.WriteTimeout, timeout)
	setDuration(&o.PoolTimeout, timeout)
	if o.MaxRetries == 0 {
		// One retry hides a connection that went stale in the pool.
		o.MaxRetries = 1
	}
	if o.Protocol == 0 {
		o.Protocol = 2 // nothing of protocol 3 is used
	}
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func setDuration(d *time.Duration, to time.Duration) {
	if *d == 0 {
		*d = to
	}
}

func isClosed(err error) bool { return errors.Is(err, redis.ErrClosed) }
