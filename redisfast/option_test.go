// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestNew_options(t *testing.T) {
	t.Parallel()
	client := newClient(t, "redis://127.0.0.1:1", nil)
	for value, opt := range map[string]redisfast.Option{
		"0s":                    redisfast.WithTimeout(0),
		"-1s":                   redisfast.WithTimeout(-time.Second),
		"1.001s":                redisfast.WithTimeout(1001 * time.Millisecond),
		"999.999µs":             redisfast.WithTimeout(time.Millisecond - 1),
		strings.Repeat("p", 65): redisfast.WithPrefix(strings.Repeat("p", 65)),
		"option 0":              nil,
	} {
		_, err := redisfast.New(client, opt)
		if !errors.Is(err, redisfast.ErrOption) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s: %v", value, err)
		}
		if _, err := redisfast.Open("redis://127.0.0.1:1", opt); !errors.Is(err, redisfast.ErrOption) {
			t.Errorf("%s: %v", value, err)
		}
	}
	// All that is wrong is named.
	_, err := redisfast.New(client, redisfast.WithTimeout(2*time.Second), redisfast.WithPrefix(strings.Repeat("q", 65)))
	if err == nil || !strings.Contains(err.Error(), "2s") || !strings.Contains(err.Error(), "qqq") {
		t.Error(err)
	}
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := redisfast.New(none); !errors.Is(err, redisfast.ErrOption) {
			t.Errorf("%T: %v", none, err)
		}
	}
	newFilter(t, client, redisfast.WithLogger(nil), redisfast.WithPrefix(""), redisfast.WithTimeout(time.Millisecond))
}

// Nothing of a URL is repeated: parts of a password turn up anywhere in it.
func TestOpen_badURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "127.0.0.1:6379", "http://u:s3cret@host", "s3cret",
		"redis://u:s3cret\x7f@host", "redis://u:s3/cret@host", "redis://u:1/s3cret/x@host", "redis://u:s3cret@host:port",
		"redis://u:%zzs3cret@host", "redis://u:s3cret@host/s3cret", "redis://u:p@host?s3cret=1",
		"redis://u:p@host?dial_timeout=s3cret", "redis://u:p@host?db=s3cret", "unix://u:s3cret@",
	} {
		_, err := redisfast.Open(url)
		if !errors.Is(err, redisfast.ErrOption) {
			t.Errorf("%q: %v", url, err)
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "cret") {
			t.Errorf("%q shows in: %v", url, err)
		}
	}
}

// Times that Redis refuses are refused here, before anything is sent (K10), and
// so is the token that names nothing (C10).
func TestFilter_badMark_K10(t *testing.T) {
	t.Parallel()
	f := openAt(t, "redis://127.0.0.1:1", "p:") // nothing listens: what is sent fails otherwise
	good := newMark()
	for _, m := range []driver.Mark{
		{Token: good.Token},
		{Token: good.Token, TTL: -5},
		{Token: good.Token, TTL: time.Millisecond - 1},
		{Token: good.Token, TTL: 24*time.Hour + 1},
		{Token: good.Token, TTL: math.MaxInt64},
		{Token: good.Token, TTL: math.MinInt64},
		{TTL: ttl},
	} {
		_, mark := f.Mark(t.Context(), "k", m)
		_, extend := f.Extend(t.Context(), "k", m)
		_, overwrite := f.Overwrite(t.Context(), "k", m)
		_, refresh := f.Refresh(t.Context(), []driver.KeyMark{{Key: "g", Mark: good}, {Key: "k", Mark: m}})
		for _, err := range []error{mark, extend, overwrite, refresh} {
			if !errors.Is(err, redisfast.ErrOption) || driver.ClassOf(err) != driver.ClassConfig {
				t.Errorf("%+v: %v", m, err)
			}
			if m.TTL != ttl && !strings.Contains(err.Error(), m.TTL.String()) {
				t.Errorf("%v is not named: %v", m.TTL, err)
			}
		}
	}
	if err := f.Clear(t.Context(), "k", driver.Token{}, true); !errors.Is(err, redisfast.ErrOption) {
		t.Error(err)
	}
}

// The whole range works, also where it is no whole number of milliseconds.
func TestFilter_ttlRange_K10(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	for i, d := range []time.Duration{time.Millisecond, 1500 * time.Microsecond, 24*time.Hour - 1, 24 * time.Hour} {
		m := driver.Mark{Token: driver.NewToken(), TTL: d}
		plant(t, f, fmt.Sprint(i), m)
		if left := s.pttl(t, fmt.Sprint(i)); left > d {
			t.Errorf("%v became %v", d, left)
		}
	}
}
