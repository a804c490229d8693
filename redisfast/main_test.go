// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis prints each refused connection
	goleak.VerifyTestMain(stack.Main(m))
}

// ttl is long enough that no test meets it by accident.
const ttl = 30 * time.Second

// server is the shared Redis with a prefix of the test's own.
type server struct {
	url    string
	prefix string
	client *redis.Client // to look behind the filter's back
}

func sharedServer(t *testing.T) server {
	t.Helper()
	return serverAt(t, stack.SharedRedis(t).URL())
}

func serverAt(t *testing.T, url string) server {
	t.Helper()
	return server{url: url, prefix: "t" + driver.NewToken().String() + ":", client: newClient(t, url, nil)}
}

// newClient makes a client as a user would, changed by tune.
func newClient(t *testing.T, url string, tune func(*redis.Options)) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	if tune != nil {
		tune(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// open returns a filter on a client of its own.
func (s server) open(t *testing.T, opts ...redisfast.Option) *redisfast.Filter {
	t.Helper()
	return openAt(t, s.url, s.prefix, opts...)
}

func openAt(t *testing.T, url, prefix string, opts ...redisfast.Option) *redisfast.Filter {
	t.Helper()
	// A second instead of the default: these tests share two cores with others,
	// and only some are about the timeout.
	opts = append([]redisfast.Option{redisfast.WithPrefix(prefix), redisfast.WithTimeout(time.Second)}, opts...)
	f, err := redisfast.Open(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, f)
	return f
}

func closeAfter(t *testing.T, f *redisfast.Filter) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func (s server) markKey(key string) string { return s.prefix + "mark:" + key }

// value is what stands under a key, "" when nothing does.
func (s server) value(t *testing.T, key string) string {
	t.Helper()
	v, err := s.client.Get(context.Background(), s.markKey(key)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

func (s server) pttl(t *testing.T, key string) time.Duration {
	t.Helper()
	d, err := s.client.PTTL(context.Background(), s.markKey(key)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// keys are all keys of the test's prefix.
func (s server) keys(t *testing.T) []string {
	t.Helper()
	keys, err := s.client.Keys(context.Background(), s.prefix+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func (s server) channels(t *testing.T) []string {
	t.Helper()
	channels, err := s.client.PubSubChannels(context.Background(), s.prefix+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return channels
}

// eventually waits for a condition that background work brings about.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func newMark() driver.Mark { return driver.Mark{Token: driver.NewToken(), TTL: ttl} }

func flagged(m driver.Mark) driver.Mark {
	m.Flagged = true
	return m
}

func plant(t *testing.T, f driver.Filter, key string, m driver.Mark) {
	t.Helper()
	st, err := f.Mark(t.Context(), key, m)
	if err != nil || !st.Ours {
		t.Fatalf("Mark: %+v, %v", st, err)
	}
}

// wantForeign checks a state that describes the mark m with about its whole time left.
func wantForeign(t *testing.T, st driver.MarkState, m driver.Mark) {
	t.Helper()
	if st.Ours || st.Other != m.Token || st.Flagged != m.Flagged {
		t.Fatalf("state %+v, want the foreign mark %+v", st, m)
	}
	if st.Left <= m.TTL/2 || st.Left > m.TTL {
		t.Fatalf("left %v of %v", st.Left, m.TTL)
	}
}
