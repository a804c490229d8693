// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

// The reply is lost and the client sends the request again, up to three times:
// it recognises its own mark (K1).
func TestFilter_lostReply_K1(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]stack.Action{"cut": stack.HangUp, "silence": stack.Swallow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := proxied(t)
			client := newClient(t, p.URL(), func(o *redis.Options) {
				o.MaxRetries = 3
				o.ReadTimeout = 200 * time.Millisecond
			})
			f := newFilter(t, client, redisfast.WithPrefix(s.prefix), redisfast.WithTimeout(time.Second))
			m := newMark()
			hit := p.LoseReply(1, isScript, lost)
			plant(t, f, "k", m)
			select {
			case <-hit:
			default:
				t.Fatal("no reply was lost")
			}
			hit = p.LoseReply(1, isScript, lost)
			if st, err := f.Overwrite(t.Context(), "k", m); err != nil || !st.Ours {
				t.Fatalf("Overwrite: %+v, %v", st, err)
			}
			<-hit
			hit = p.LoseReply(1, isScript, lost)
			if err := f.Clear(t.Context(), "k", m.Token, true); err != nil {
				t.Fatal(err)
			}
			<-hit
			if keys := s.keys(t); len(keys) > 0 {
				t.Errorf("left: %v", keys)
			}
		})
	}
}

// The reply is lost and nobody asks again: the mark is deleted by the driver,
// not by its time to live (B2, B4).
func TestFilter_lostReply_B2(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]stack.Action{"cut": stack.HangUp, "silence": stack.Swallow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := proxied(t)
			client := newClient(t, p.URL(), func(o *redis.Options) {
				o.MaxRetries = -1
				o.ContextTimeoutEnabled = true
			})
			f := newFilter(t, client, redisfast.WithPrefix(s.prefix))
			c, stop := s.open(t).Wakeups("k")
			defer stop()
			<-c // confirmed
			hit := p.LoseReply(1, isScript, lost)
			_, err := f.Mark(t.Context(), "k", newMark())
			wantClass(t, err, driver.ClassUnknown)
			<-hit
			eventually(t, 3*time.Second, "the mark is gone", func() bool { return s.value(t, "k") == "" })
			select {
			case <-c:
			case <-time.After(time.Second):
				t.Error("nobody was told that the mark is gone")
			}
		})
	}
}

// hold keeps the next script back until the test lets it go; the client has
// given up by then.
func hold(p *stack.Proxy) (release func()) {
	released, answered := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	var conn atomic.Int64
	p.OnRequest(func(r stack.Request) stack.Action {
		if isScript(r) && !held.Swap(true) {
			conn.Store(int64(r.Conn))
			return stack.HoldUntil(released)
		}
		return stack.Pass
	})
	p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
		if int64(r.Conn) == conn.Load() && isScript(r) {
			close(answered)
			conn.Store(-1)
		}
		return stack.Pass
	})
	return func() {
		close(released)
		<-answered // the server has carried it out
	}
}

// A request that arrives after it was given up, and after its undoing: the
// undoing is repeated.
func TestFilter_lateMark(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	f := openAt(t, p.URL(), s.prefix, redisfast.WithTimeout(100*time.Millisecond))
	release := hold(p)
	_, err := f.Mark(t.Context(), "k", newMark())
	wantClass(t, err, driver.ClassUnknown)
	time.Sleep(50 * time.Millisecond) // the first undoing finds nothing
	release()
	eventually(t, 10*time.Second, "the late mark is gone", func() bool { return s.value(t, "k") == "" })
}

// An overwrite or refresh that arrives after its mark was cleared does not bring
// it back for good.
func TestFilter_latePlanting(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*testing.T, driver.Filter, driver.Mark) error{
		"Overwrite": func(t *testing.T, f driver.Filter, m driver.Mark) error {
			_, err := f.Overwrite(t.Context(), "k", m)
			return err
		},
		"Refresh": func(t *testing.T, f driver.Filter, m driver.Mark) error {
			_, err := f.Refresh(t.Context(), []driver.KeyMark{{Key: "k", Mark: m}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := proxied(t)
			f := openAt(t, p.URL(), s.prefix, redisfast.WithTimeout(300*time.Millisecond))
			m := newMark()
			release := hold(p)
			wantClass(t, do(t, f, m), driver.ClassUnknown)
			if err := f.Clear(t.Context(), "k", m.Token, true); err != nil {
				t.Fatal(err)
			}
			release()
			eventually(t, 10*time.Second, "the late mark is gone", func() bool { return s.value(t, "k") == "" })
		})
	}
}

// Nobody clears the mark of an overwrite whose outcome is unknown but the
// caller: it may hold the grant.
func TestFilter_Overwrite_unknownStays(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	client := newClient(t, p.URL(), func(o *redis.Options) { o.MaxRetries = -1 })
	f := newFilter(t, client, redisfast.WithPrefix(s.prefix))
	p.LoseReply(1, isScript, stack.HangUp)
	m := newMark()
	_, err := f.Overwrite(t.Context(), "k", m)
	wantClass(t, err, driver.ClassUnknown)
	time.Sleep(1300 * time.Millisecond) // past the time the driver remembers it
	if s.value(t, "k") == "" {
		t.Error("the mark of a grant is gone")
	}
}

// A deletion that failed is tried again while the server is away, and the
// waiters are told then.
func TestFilter_Clear_retried(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	f := openAt(t, p.URL(), s.prefix)
	m := newMark()
	plant(t, f, "k", m)
	c, stop := s.open(t).Wakeups("k")
	defer stop()
	<-c // confirmed
	p.Cut()
	wantClass(t, f.Clear(t.Context(), "k", m.Token, true), driver.ClassDown)
	time.Sleep(300 * time.Millisecond)
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Second, "the mark is gone", func() bool { return s.value(t, "k") == "" })
	select {
	case <-c:
	case <-time.After(time.Second):
		t.Error("nobody was told")
	}
}

// A server that cannot save refuses the deletion: the caller is told, the rest
// is left to the time to live (K6).
func TestFilter_Clear_misconf_K6(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	f := openAt(t, p.URL(), s.prefix)
	m := newMark()
	m.TTL = time.Second
	plant(t, f, "k", m)
	p.OnRequest(func(r stack.Request) stack.Action {
		if isScript(r) {
			return stack.RedisError("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.")
		}
		return stack.Pass
	})
	wantClass(t, f.Clear(t.Context(), "k", m.Token, true), driver.ClassDown)
	eventually(t, 3*time.Second, "the mark has expired", func() bool { return s.value(t, "k") == "" })
}
