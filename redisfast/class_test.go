// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

// Each error reply comes over the wire, to every method: none is a state (K4).
func TestFilter_errorReplies_K4(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		text  string
		class driver.Class
	}{
		{"LOADING Redis is loading the dataset in memory", driver.ClassDown},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", driver.ClassDown},
		{"READONLY You can't write against a read only replica.", driver.ClassDown},
		{"MOVED 3999 127.0.0.1:1", driver.ClassDown},
		{"ASK 3999 127.0.0.1:1", driver.ClassTransient},
		{"TRYAGAIN Multiple keys request during rehashing of slot", driver.ClassTransient},
		{"CLUSTERDOWN The cluster is down", driver.ClassDown},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", driver.ClassDown},
		{"OOM command not allowed when used memory > 'maxmemory'.", driver.ClassDown},
		{"MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.", driver.ClassDown},
		{"NOAUTH Authentication required.", driver.ClassConfig},
		{"WRONGPASS invalid username-password pair or user is disabled.", driver.ClassConfig},
		{"NOPERM this user has no permissions to run the 'evalsha' command", driver.ClassConfig},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", driver.ClassConfig},
		{"NOSCRIPT No matching script. Please use EVAL.", driver.ClassTransient},
		{"EXECABORT Transaction discarded because of previous errors.", driver.ClassTransient},
		{"NOREPLICAS Not enough good replicas to write.", driver.ClassDown},
		{"ERR max number of clients reached", driver.ClassDown},
		{"ERR unknown command 'EVALSHA'", driver.ClassConfig},
		{"ERR Error running script (call to f_1): @user_script:16: -OOM command not allowed", driver.ClassDown},
	} {
		t.Run(strings.Fields(row.text)[0], func(t *testing.T) {
			t.Parallel()
			s := sharedServer(t)
			p := stack.StartProxy(t, stack.SharedRedis(t))
			f := openAt(t, p.URL(), s.prefix)
			m := newMark()
			plant(t, f, "k", m)
			p.OnRequest(func(r stack.Request) stack.Action {
				if isScript(r) {
					return stack.RedisError(row.text)
				}
				return stack.Pass
			})
			check := func(op string, err error, zero bool) {
				t.Helper()
				wantClass(t, err, row.class)
				var e *driver.Error
				if errors.As(err, &e); e.Op != op || e.Advice == "" || !strings.Contains(err.Error(), e.Advice) {
					t.Errorf("%s: %v", op, err)
				}
				if !zero {
					t.Errorf("%s: a state besides an error", op)
				}
			}
			st, err := f.Mark(t.Context(), "k", newMark())
			check("mark", err, st == driver.MarkState{})
			st, err = f.Extend(t.Context(), "k", m)
			check("extend", err, st == driver.MarkState{})
			st, err = f.Overwrite(t.Context(), "k", m)
			check("overwrite", err, st == driver.MarkState{})
			states, err := f.Refresh(t.Context(), []driver.KeyMark{{Key: "k", Mark: m}})
			check("refresh", err, states == nil)
			check("clear", f.Clear(t.Context(), "k", m.Token, true), true)
			check("mark", f.Check(t.Context()), true)
			p.OnRequest(nil)
			plant(t, f, "k", m) // it was no loss
		})
	}
}

// A server that refuses connections is down, at once.
func TestFilter_refused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	f := openAt(t, "redis://"+addr, "p:")
	begun := time.Now()
	_, err = f.Mark(t.Context(), "k", newMark())
	wantClass(t, err, driver.ClassDown)
	if took := time.Since(begun); took > 500*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// What real servers answer, with passwords that nobody may see.
func TestFilter_credentials(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	admin := newClient(t, srv.URL(), nil)
	ctx := t.Context()
	for _, rule := range [][]any{
		{"acl", "setuser", "full", "on", ">s3cret-full", "~p:*", "&p:*", "+@all"},
		{"acl", "setuser", "mute", "on", ">s3cret-mute", "~p:*", "&p:*", "+@all", "-publish"},
		{"acl", "setuser", "other", "on", ">s3cret-other", "~q:*", "&q:*", "+@all"},
		{
			"acl", "setuser", "noinfo", "on", ">s3cret-noinfo", "~p:*", "&p:*",
			"+eval", "+evalsha", "+get", "+set", "+del", "+pttl", "+pexpire", "+publish", "+subscribe",
		},
		{"acl", "setuser", "default", "resetpass", "off"},
	} {
		if err := admin.Do(ctx, rule...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for user, ok := range map[string]bool{
		"full:s3cret-full@": true, "noinfo:s3cret-noinfo@": true,
		"mute:s3cret-mute@": false, "other:s3cret-other@": false, "full:s3cret-wrong@": false, "": false,
	} {
		core, logs := observer.New(zapcore.DebugLevel)
		f := openAt(t, "redis://"+user+srv.Addr(), "p:", redisfast.WithLogger(zap.New(core)))
		c, stop := f.Wakeups("k")
		err := f.Check(ctx)
		if ok != (err == nil) {
			t.Errorf("%q: %v", user, err)
		}
		if !ok {
			wantClass(t, err, driver.ClassConfig)
		} else {
			<-c
		}
		if !ok && user != "mute:s3cret-mute@" {
			eventually(t, 2*time.Second, "the refused subscription is logged", func() bool {
				return logs.FilterMessageSnippet("wake-ups").Len() > 0
			})
		}
		stop()
		text := fmt.Sprint(err, logs.All())
		for _, e := range logs.All() {
			text += fmt.Sprint(e.ContextMap())
		}
		if strings.Contains(text, "s3cret") {
			t.Errorf("a password shows: %s", text)
		}
	}
}

func TestFilter_wrongType(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	s.client.LPush(t.Context(), s.markKey("list"), "x")
	m := newMark()
	_, err := f.Mark(t.Context(), "list", m)
	wantClass(t, err, driver.ClassConfig)
	_, err = f.Overwrite(t.Context(), "list", m)
	wantClass(t, err, driver.ClassConfig)
	wantClass(t, f.Clear(t.Context(), "list", m.Token, true), driver.ClassConfig)
	marks := []driver.KeyMark{{Key: "list", Mark: m}}
	for i := range 600 { // more than one pipeline holds
		marks = append(marks, driver.KeyMark{Key: fmt.Sprint("n", i), Mark: m})
	}
	states, err := f.Refresh(t.Context(), append(marks, driver.KeyMark{Key: "good", Mark: m}))
	wantClass(t, err, driver.ClassConfig)
	if states != nil {
		t.Errorf("states %v besides an error", states)
	}
	if s.value(t, "good") == "" {
		t.Error("one bad key kept another from being refreshed")
	}
	if n := s.client.LLen(t.Context(), s.markKey("list")).Val(); n != 1 {
		t.Error("the stranger's list is gone")
	}
}

// Replication is no condition: a lone server filters (E2), one that demands
// replicas and a replica itself are down, not contended.
func TestFilter_replication_E2(t *testing.T) {
	t.Parallel()
	primary := stack.StartRedis(t)
	plant(t, openAt(t, primary.URL(), "p:"), "k", newMark())

	host, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := stack.StartRedis(t)
	if err := newClient(t, replica.URL(), nil).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	f := openAt(t, replica.URL(), "p:")
	eventually(t, 20*time.Second, "the replica says what it is", func() bool {
		_, err := f.Mark(t.Context(), "k2", newMark())
		return err != nil && strings.Contains(err.Error(), "READONLY") && driver.ClassOf(err) == driver.ClassDown
	})

	strict := stack.StartRedis(t, "--min-replicas-to-write", "1")
	_, err = openAt(t, strict.URL(), "p:").Mark(t.Context(), "k", newMark())
	wantClass(t, err, driver.ClassDown)
	if !strings.Contains(err.Error(), "NOREPLICAS") {
		t.Error(err)
	}
}

// Without memory the server refuses new marks, and still says who is in the way.
func TestFilter_outOfMemory_K5(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t)
	s := serverAt(t, srv.URL())
	f := s.open(t)
	m := newMark()
	plant(t, f, "k", m)
	if err := s.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := f.Mark(t.Context(), "new", newMark())
	wantClass(t, err, driver.ClassDown)
	if !strings.Contains(err.Error(), "OOM") || !strings.Contains(err.Error(), "maxmemory") {
		t.Error(err)
	}
	st, err := f.Mark(t.Context(), "k", newMark())
	if err != nil {
		t.Fatal(err)
	}
	wantForeign(t, st, m)
	if err := f.Clear(t.Context(), "k", m.Token, true); err != nil {
		t.Error(err)
	}
}

// A server that evicts: marks vanish, which costs time and is no error; Check
// says so.
func TestFilter_eviction_K5(t *testing.T) {
	t.Parallel()
	srv := stack.StartRedis(t, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
	s := serverAt(t, srv.URL())
	core, logs := observer.New(zapcore.WarnLevel)
	f := s.open(t, redisfast.WithLogger(zap.New(core)))
	if err := f.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if logs.FilterMessageSnippet("evict").FilterField(zap.String("maxmemory_policy", "allkeys-lru")).Len() != 1 {
		t.Errorf("logged: %v", logs.All())
	}
	marks := make([]driver.Mark, 200)
	for i := range marks {
		marks[i] = newMark()
		if st, err := f.Mark(t.Context(), fmt.Sprint(i), marks[i]); err != nil || !st.Ours {
			t.Fatalf("%+v, %v", st, err)
		}
		s.client.Set(t.Context(), fmt.Sprint("fill", i), strings.Repeat("x", 20_000), 0)
	}
	gone := 0
	for i, m := range marks {
		st, err := f.Extend(t.Context(), fmt.Sprint(i), m)
		if err != nil {
			t.Fatal(err)
		}
		if st == (driver.MarkState{}) {
			gone++
		}
	}
	if gone == 0 {
		t.Error("nothing was evicted: the test proves nothing")
	}
}

func TestFilter_Check(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	core, logs := observer.New(zapcore.InfoLevel)
	f := s.open(t, redisfast.WithLogger(zap.New(core)))
	if err := f.Check(t.Context()); err != nil || logs.Len() > 0 {
		t.Errorf("%v, logged %v", err, logs.All())
	}
	if keys := s.keys(t); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
	f = newFilter(t, newClient(t, s.url, nil), redisfast.WithPrefix(s.prefix), redisfast.WithLogger(zap.New(core)))
	if err := f.Check(t.Context()); err != nil || logs.FilterMessageSnippet("ContextTimeoutEnabled").Len() != 1 {
		t.Errorf("%v, logged %v", err, logs.All())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantClass(t, f.Check(ctx), driver.ClassCaller)
}
