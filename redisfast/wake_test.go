// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

func wantWake(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("no wake-up: %s", what)
	}
}

func wantSilence(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
		t.Fatalf("a wake-up: %s", what)
	case <-time.After(100 * time.Millisecond):
	}
}

// subscribers counts the connections that the server has subscriptions on.
func (s server) subscribers(t *testing.T) int {
	t.Helper()
	list, err := s.client.Do(context.Background(), "client", "list", "type", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}

func TestFilter_Wakeups(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f, other := s.open(t), s.open(t)
	c, stop := f.Wakeups("k")
	wantWake(t, c, "confirmation")
	wantSilence(t, c, "nothing happened")

	// Whether or not anything was deleted, and only when asked to.
	wake := func(wake bool) {
		t.Helper()
		if err := other.Clear(t.Context(), "k", driver.NewToken(), wake); err != nil {
			t.Fatal(err)
		}
	}
	wake(true)
	wantWake(t, c, "message")
	wake(false)
	wantSilence(t, c, "a clear that wakes nobody")

	// A second waiter shares the subscription and has its confirmation at once.
	c2, stop2 := f.Wakeups("k")
	wantWake(t, c2, "confirmation of a shared subscription")
	if n := s.client.PubSubNumSub(t.Context(), s.prefix+"wake:k").Val()[s.prefix+"wake:k"]; n != 1 {
		t.Errorf("%d subscriptions", n)
	}
	wake(true)
	wantWake(t, c, "first of two")
	wantWake(t, c2, "second of two")
	// The channel holds one value.
	for range 3 {
		wake(true)
	}
	wantWake(t, c, "several messages")
	eventually(t, time.Second, "the rest is dropped", func() bool { return len(c2) == 1 })

	stop()
	stop() // a second time it is not the other waiter's
	wantWake(t, c2, "several messages")
	wake(true)
	wantWake(t, c2, "after the other has stopped")
	stop2()
	eventually(t, time.Second, "no channel is left", func() bool { return len(s.channels(t)) == 0 })
}

// A release between the failed try and the subscription is not lost: the
// confirmation says to try again (G1).
func TestFilter_Wakeups_confirmation_G1(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	for i := range 50 {
		m := newMark()
		plant(t, f, "k", m)
		if st, err := f.Mark(t.Context(), "k", newMark()); err != nil || st.Ours {
			t.Fatalf("%+v, %v", st, err)
		}
		if err := f.Clear(t.Context(), "k", m.Token, true); err != nil {
			t.Fatal(err)
		}
		c, stop := f.Wakeups("k")
		wantWake(t, c, fmt.Sprint("round ", i))
		stop()
	}
}

// Waiters that come and go at once, on a few keys, with messages all the while:
// each hears of its confirmation.
func TestFilter_Wakeups_churn(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	var waiters sync.WaitGroup
	for w := range 16 {
		waiters.Go(func() {
			for i := range 200 {
				c, stop := f.Wakeups(fmt.Sprint((w + i) % 3))
				select {
				case <-c:
				case <-time.After(10 * time.Second):
					t.Errorf("waiter %d/%d hears nothing", w, i)
				}
				stop()
			}
		})
	}
	waiters.Wait()
	eventually(t, 2*time.Second, "no channel is left", func() bool { return len(s.channels(t)) == 0 })
}

// 5,000 waiting keys are one connection, and in the end none (G3).
func TestFilter_Wakeups_manyKeys_G3(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	s := serverAt(t, srv.URL())
	client := newClient(t, srv.URL(), nil)
	f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(time.Second))
	connections := func() uint32 { return client.PoolStats().PubSubStats.Active }
	const keys = 5000
	var stops []func()
	var waits []<-chan struct{}
	for i := range keys {
		c, stop := f.Wakeups(fmt.Sprint(i))
		waits, stops = append(waits, c), append(stops, stop)
	}
	for i, c := range waits {
		wantWake(t, c, fmt.Sprint("confirmation of ", i))
	}
	if n := connections(); n != 1 || s.subscribers(t) != 1 {
		t.Errorf("%d connections for %d keys", n, keys)
	}
	if n := len(s.channels(t)); n != keys {
		t.Errorf("%d channels", n)
	}
	for i := range keys {
		if err := f.Clear(t.Context(), fmt.Sprint(i), driver.NewToken(), true); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range waits {
		wantWake(t, c, fmt.Sprint("message of ", i))
	}
	for _, stop := range stops {
		stop()
	}
	eventually(t, 2*time.Second, "no channel is left", func() bool { return len(s.channels(t)) == 0 })
	eventually(t, 15*time.Second, "the connection is closed", func() bool { return connections() == 0 })
	// The next waiter gets a new one.
	c, stop := f.Wakeups("again")
	defer stop()
	wantWake(t, c, "confirmation on a new connection")
}

// slow reports an error that a thousand callers at once on a busy machine get.
func slow(err error) bool {
	class := driver.ClassOf(err)
	return class == driver.ClassUnknown || class == driver.ClassTransient
}

// FLUSHALL with 1,000 waiters: no subscription is lost, all make progress (G6).
func TestFilter_Wakeups_flush_G6(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	s := serverAt(t, srv.URL())
	f := s.open(t)
	holder := newMark()
	var waiting, done sync.WaitGroup
	var passed atomic.Int32
	for i := range 1000 {
		key := fmt.Sprint(i % 100)
		if i < 100 {
			plant(t, f, key, holder)
		}
		c, stop := f.Wakeups(key)
		waiting.Add(1)
		done.Go(func() {
			defer stop()
			<-c
			waiting.Done()
			for {
				m := newMark()
				st, err := f.Mark(t.Context(), key, m)
				if err != nil && !slow(err) {
					t.Error(err)
					return
				}
				if st.Ours {
					passed.Add(1)
					// One that comes too late is repeated by the driver.
					if err := f.Clear(t.Context(), key, m.Token, true); err != nil && !slow(err) {
						t.Error(err)
					}
					return
				}
				if err != nil {
					continue
				}
				select {
				case <-c:
				case <-time.After(20 * time.Second):
					t.Errorf("a waiter of %s hears nothing", key)
					return
				}
			}
		})
	}
	waiting.Wait()
	s.client.FlushAll(t.Context())
	for i := range 100 {
		if err := f.Clear(t.Context(), fmt.Sprint(i), holder.Token, true); err != nil && !slow(err) {
			t.Error(err)
		}
	}
	done.Wait()
	if n := passed.Load(); n != 1000 {
		t.Errorf("%d of 1000 passed", n)
	}
}

// Each waiter hears of a reconnection, since messages may have been missed, and
// of messages after it. The log has one line for the loss and one for the end.
func TestFilter_Wakeups_reconnect(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	p := stack.StartProxy(t, srv)
	s := serverAt(t, srv.URL())
	core, logs := observer.New(zapcore.InfoLevel)
	f := openAt(t, p.URL(), s.prefix, redisfast.WithLogger(zap.New(core)))
	var waits []<-chan struct{}
	for i := range 20 {
		c, stop := f.Wakeups(fmt.Sprint(i))
		defer stop()
		waits = append(waits, c)
	}
	all := func(what string) {
		t.Helper()
		for i, c := range waits {
			wantWake(t, c, fmt.Sprint(what, " ", i))
		}
	}
	all("confirmation")
	p.Drop()
	all("after a dropped connection")
	p.Cut()
	eventually(t, 5*time.Second, "the loss is noticed", func() bool {
		return logs.FilterMessageSnippet("interrupted").Len() > logs.FilterMessageSnippet("back").Len()
	})
	time.Sleep(1500 * time.Millisecond) // several attempts
	late, stop := f.Wakeups("0")
	defer stop()
	wantSilence(t, late, "nothing is confirmed while the server is away")
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	all("after an outage")
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	all("after a restart")
	for i := range waits {
		// A filter of its own: pooled connections of the other are stale.
		if err := s.open(t).Clear(t.Context(), fmt.Sprint(i), driver.NewToken(), true); err != nil {
			t.Fatal(err)
		}
	}
	all("message")
	down, up := logs.FilterMessageSnippet("interrupted").Len(), logs.FilterMessageSnippet("back").Len()
	if down < 1 || down > 3 || up != down {
		t.Errorf("three outages: %d lines of loss, %d of return", down, up)
	}
}

// A connection that is silent, without a reset, is given up and made anew.
func TestFilter_Wakeups_silence(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	p := stack.StartProxy(t, srv)
	s := serverAt(t, srv.URL())
	f := openAt(t, p.URL(), s.prefix)
	c, stop := f.Wakeups("k")
	defer stop()
	wantWake(t, c, "confirmation")
	// Nothing but the sign of life that the connection is asked for stays away.
	p.OnRequest(func(r stack.Request) stack.Action {
		if r.Verb == "PING" {
			return stack.Swallow
		}
		return stack.Pass
	})
	wantWake(t, c, "confirmation on the next connection")
}

// A server that takes connections and ends them is asked a few times a second,
// however many waiters come and go (G5).
func TestFilter_Wakeups_backoff_G5(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int32
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			_ = c.Close()
		}
	})
	core, logs := observer.New(zapcore.InfoLevel)
	f := openAt(t, "redis://"+l.Addr().String(), "p:", redisfast.WithLogger(zap.New(core)))
	for i, end := 0, time.Now().Add(3*time.Second); time.Now().Before(end); i++ {
		_, stop := f.Wakeups(fmt.Sprint(i))
		time.Sleep(time.Duration(i%5) * time.Millisecond)
		stop()
	}
	// About 2 s of doubling pauses and 1 s of pauses of a second, two dials each.
	if n := dials.Load(); n == 0 || n > 30 {
		t.Errorf("%d dials in 3 s", n)
	}
	if n := logs.Len(); n != 1 {
		t.Errorf("%d lines logged: %v", n, logs.All())
	}
	_ = l.Close()
	accepting.Wait()
}
