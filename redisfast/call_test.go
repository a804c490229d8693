// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

func isScript(r stack.Request) bool { return r.Verb == "EVALSHA" || r.Verb == "EVAL" }

// proxied is a private server behind a proxy, with its scripts loaded, so that
// the next call is one request.
func proxied(t *testing.T) (server, *stack.Proxy) {
	t.Helper()
	srv := stack.StartRedis(t)
	p := stack.StartProxy(t, srv)
	s := serverAt(t, srv.URL())
	f := s.open(t)
	m := newMark()
	plant(t, f, "warm", m)
	_, _ = f.Overwrite(t.Context(), "warm", m)
	_, _ = f.Refresh(t.Context(), []driver.KeyMark{{Key: "warm", Mark: m}})
	if err := f.Clear(t.Context(), "warm", m.Token, false); err != nil {
		t.Fatal(err)
	}
	return s, p
}

func newFilter(t *testing.T, client redis.UniversalClient, opts ...redisfast.Option) *redisfast.Filter {
	t.Helper()
	f, err := redisfast.New(client, opts...)
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, f)
	return f
}

func wantClass(t *testing.T, err error, want driver.Class) {
	t.Helper()
	var e *driver.Error
	if !errors.As(err, &e) || e.Class != want || e.Tier != "redis" {
		t.Fatalf("error %v, want the class %v", err, want)
	}
}

// A client with long limits of its own, on a server that is silent: every call
// returns at the filter's timeout, and what it left is undone when the server
// comes back.
func TestFilter_silentServer_P10(t *testing.T) {
	t.Parallel()
	const timeout = 150 * time.Millisecond
	srv := stack.StartRedis(t)
	s := serverAt(t, srv.URL())
	client := newClient(t, srv.URL(), func(o *redis.Options) { o.ReadTimeout = 3 * time.Second })
	f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(timeout))
	m := newMark()
	plant(t, s.open(t), "held", m)

	if err := srv.Pause(); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for name, do := range map[string]func() error{
		"Mark":      func() error { _, err := f.Mark(t.Context(), "new", newMark()); return err },
		"Extend":    func() error { _, err := f.Extend(t.Context(), "held", m); return err },
		"Overwrite": func() error { _, err := f.Overwrite(t.Context(), "held", m); return err },
		"Refresh": func() error {
			_, err := f.Refresh(t.Context(), []driver.KeyMark{{Key: "held", Mark: m}})
			return err
		},
		"Clear": func() error { return f.Clear(t.Context(), "other", driver.NewToken(), true) },
		"Check": func() error { return f.Check(t.Context()) },
	} {
		calls.Go(func() {
			begun := time.Now()
			err := do()
			took := time.Since(begun)
			if driver.ClassOf(err) != driver.ClassUnknown || !errors.Is(err, redisfast.ErrTimeout) {
				t.Errorf("%s: %v", name, err)
			}
			if took < timeout || took > timeout+500*time.Millisecond {
				t.Errorf("%s returned after %v", name, took)
			}
		})
	}
	calls.Wait()
	if err := srv.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "only the mark that is held stands", func() bool {
		keys := s.keys(t)
		return len(keys) == 1 && keys[0] == s.markKey("held")
	})
}

// A caller that is cancelled leaves at once, whatever the client does.
func TestFilter_cancel(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	client := newClient(t, p.URL(), func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
	f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(time.Second))
	plant(t, f, "held", newMark())
	p.Delay(0, 600*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	begun := time.Now()
	_, err := f.Mark(ctx, "k", newMark())
	wantClass(t, err, driver.ClassCaller)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(begun); took > 400*time.Millisecond {
		t.Errorf("returned after %v", took)
	}
	// The server had planted it by then; its answer, which comes later, undoes it.
	eventually(t, 3*time.Second, "the mark of the caller that left is gone", func() bool { return s.value(t, "k") == "" })

	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = f.Extend(ctx, "held", newMark())
	wantClass(t, err, driver.ClassCaller)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
}

// A call whose context is over sends nothing (B4: and leaves nothing to undo).
func TestFilter_deadContext(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	f := openAt(t, p.URL(), s.prefix)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Mark(ctx, "k", newMark())
	wantClass(t, err, driver.ClassCaller)
	wantClass(t, f.Clear(ctx, "k", driver.NewToken(), true), driver.ClassCaller)
	if n := p.Requests(); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// Callers that leave at every instant of a call leave no key, and no goroutine
// (B1 on this tier, B2, B4; goleak looks after the tests).
func TestFilter_cancelStorm_B1(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	var calls sync.WaitGroup
	planted := make(chan driver.KeyMark, 4000)
	for w := range 8 {
		calls.Go(func() {
			for i := range 500 {
				key, m := fmt.Sprint(w, "/", i), newMark()
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
				st, err := f.Mark(ctx, key, m)
				cancel()
				switch {
				case err == nil && st.Ours:
					planted <- driver.KeyMark{Key: key, Mark: m}
				case driver.ClassOf(err) != driver.ClassCaller:
					t.Errorf("%+v, %v", st, err)
				}
			}
		})
	}
	calls.Wait()
	close(planted)
	n := 0
	for km := range planted {
		n++
		if s.value(t, km.Key) == "" {
			t.Errorf("%s: a mark that was granted is gone", km.Key)
		}
		if err := f.Clear(t.Context(), km.Key, km.Mark.Token, false); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 4000 planted", n)
	eventually(t, 3*time.Second, "no key is left", func() bool { return len(s.keys(t)) == 0 })
}

func TestFilter_Close(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	client := newClient(t, s.url, nil)
	f := newFilter(t, client, redisfast.WithPrefix(s.prefix))
	c, stop := f.Wakeups("k")
	defer stop()
	<-c
	for range 2 {
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.Mark(t.Context(), "k", newMark())
	wantClass(t, err, driver.ClassCaller)
	if !errors.Is(err, redisfast.ErrClosed) {
		t.Errorf("error %v", err)
	}
	c, stop = f.Wakeups("k")
	stop()
	select {
	case <-c:
		t.Error("a value after Close")
	default:
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("Close closed a client that is not its own: %v", err)
	}
	eventually(t, time.Second, "the subscription is gone", func() bool { return len(s.channels(t)) == 0 })
}

// Close waits for what calls left behind, until its context ends.
func TestFilter_Close_leftovers(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	s := serverAt(t, srv.URL())
	client := newClient(t, srv.URL(), func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(100*time.Millisecond))
	if err := client.Ping(t.Context()).Err(); err != nil { // a connection that is there already
		t.Fatal(err)
	}
	if err := srv.Pause(); err != nil {
		t.Fatal(err)
	}
	_, err := f.Mark(t.Context(), "k", newMark())
	wantClass(t, err, driver.ClassUnknown)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err = f.Close(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close on a silent server: %v", err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("Close took %v", took)
	}
	if err := srv.Resume(); err != nil {
		t.Fatal(err)
	}
}

// Close does not wait for the time at which a deletion would be repeated, and
// what it gave up is over.
func TestFilter_Close_hurries(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	client := newClient(t, p.URL(), func(o *redis.Options) { o.MaxRetries = -1; o.DialerRetries = 1 })
	lost := func() *redisfast.Filter {
		f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(time.Second))
		hit := p.LoseReply(1, isScript, stack.HangUp)
		_, err := f.Mark(t.Context(), "k", newMark())
		wantClass(t, err, driver.ClassUnknown)
		<-hit
		return f
	}
	closeIn := func(f *redisfast.Filter, d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return f.Close(ctx)
	}
	if err := closeIn(lost(), 600*time.Millisecond); err != nil {
		t.Error(err)
	}
	if v := s.value(t, "k"); v != "" {
		t.Error("the mark stands after Close")
	}

	f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(time.Second))
	p.Cut()
	_, err := f.Mark(t.Context(), "k", newMark())
	wantClass(t, err, driver.ClassDown)
	if err := closeIn(f, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close with a mark in doubt: %v", err)
	}
	if err := closeIn(f, time.Second); err != nil {
		t.Errorf("work goes on after it was given up: %v", err)
	}
}
