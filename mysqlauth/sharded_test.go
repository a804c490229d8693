// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// databases are so many on one server, with tables.
func databases(t *testing.T, engine stack.Engine, n int) []*stack.Database {
	t.Helper()
	var all []*stack.Database
	for range n {
		d := stack.SharedSQL(t, engine).CreateDatabase(t)
		if err := EnsureSchema(t.Context(), openAdmin(t, d)); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

// sharded composes authorities of its own on databases, by name.
func sharded(t *testing.T, of map[string]*stack.Database, opts ...Option) *Sharded {
	t.Helper()
	var all []Shard
	for name, d := range of {
		all = append(all, Shard{name, open(t, d.DSN(), append([]Option{WithTimeout(busyLimit)}, opts...)...)})
	}
	s, err := NewSharded(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSharded_dealsOut spreads the keys, and a shard that is added takes its own share
// from the others and moves nothing between them.
func TestSharded_dealsOut(t *testing.T) {
	t.Parallel()
	made := func(names ...string) *Sharded {
		s := &Sharded{}
		for _, name := range names {
			s.shards = append(s.shards, &shard{Shard: Shard{Name: name}})
		}
		return s
	}
	two, again, three := made("a", "b"), made("b", "a"), made("a", "b", "c")
	const keys = 10_000
	counts, moved := map[string]int{}, 0
	for i := range keys {
		key := fmt.Sprintf("shop/sku-%d", i)
		before, after := two.of(key).Name, three.of(key).Name
		counts[before]++
		if again.of(key).Name != before {
			t.Fatalf("%s: the order of the list matters", key)
		}
		if after != before {
			moved++
			if after != "c" {
				t.Fatalf("%s moved from %s to %s", key, before, after)
			}
		}
	}
	if counts["a"] < keys*45/100 || counts["b"] < keys*45/100 {
		t.Errorf("dealt out as %v", counts)
	}
	if moved < keys*30/100 || moved > keys*37/100 {
		t.Errorf("%d of %d keys moved to a third shard", moved, keys)
	}
	// Never to be changed: processes of two releases would hold the same key.
	if got := weigh("a", "shop/sku-1"); got != 0xb466963892b8f426 {
		t.Errorf("the weight of a key is %#x", got)
	}
}

// TestSharded_list refuses to start with another list than the databases know, and
// writes none of it.
func TestSharded_list(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			d := databases(t, engine, 3)
			same := map[string]*stack.Database{"a": d[0], "b": d[1]}
			for range 2 {
				if err := sharded(t, same).Check(t.Context()); err != nil {
					t.Fatalf("the first list: %v", err)
				}
			}
			for what, of := range map[string]map[string]*stack.Database{
				"swapped":            {"a": d[1], "b": d[0]},
				"renamed":            {"a": d[0], "c": d[1]},
				"one less":           {"a": d[0]},
				"one more":           {"a": d[0], "b": d[1], "c": d[2]},
				"one before":         {"0": d[2], "a": d[0], "b": d[1]},
				"one database twice": {"a": d[0], "b": d[0]},
			} {
				s := sharded(t, of)
				err := s.Check(t.Context())
				if driver.ClassOf(err) != driver.ClassConfig || !strings.Contains(err.Error(), `"a,b"`) || !strings.Contains(err.Error(), s.list) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := sharded(t, same).Check(t.Context()); err != nil {
				t.Errorf("the first list, after all: %v", err)
			}
			err := open(t, d[0].DSN(), WithTimeout(busyLimit)).Check(t.Context())
			if driver.ClassOf(err) != driver.ClassConfig || !strings.Contains(err.Error(), `"a,b"`) {
				t.Errorf("a shard alone: %v", err)
			}
			if err := open(t, d[2].DSN(), WithTimeout(busyLimit)).Check(t.Context()); err != nil {
				t.Errorf("a database that no list was accepted for: %v", err)
			}
			mustExec(t, openAdmin(t, d[2]), "DROP TABLE shard")
			if err := open(t, d[2].DSN(), WithTimeout(busyLimit)).Check(t.Context()); err != nil {
				t.Errorf("a database that cannot be a shard: %v", err)
			}
		})
	}
	for what, shards := range map[string][]Shard{
		"none": nil, "no authority": {{Name: "a"}}, "a bad name": {{Name: "A b", Authority: &Authority{}}},
		"two of a name": {{Name: "a", Authority: &Authority{}}, {Name: "a", Authority: &Authority{}}},
	} {
		if _, err := NewSharded(shards...); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSharded_firstLists starts processes with different lists at once on databases
// that know none: one list is accepted, by all who have it.
func TestSharded_firstLists(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			d := databases(t, engine, 3)
			var starts []*Sharded
			for range 2 {
				starts = append(starts, sharded(t, map[string]*stack.Database{"a": d[0], "b": d[1]}),
					sharded(t, map[string]*stack.Database{"b": d[1], "c": d[2]}),
					sharded(t, map[string]*stack.Database{"a": d[0], "b": d[1], "c": d[2]}))
			}
			for range 5 {
				errs := make([]error, len(starts))
				var all sync.WaitGroup
				for i, s := range starts {
					all.Go(func() { errs[i] = s.Check(t.Context()) })
				}
				all.Wait()
				started := make(map[string]int)
				for i, err := range errs {
					if err == nil {
						started[starts[i].list]++
					} else if driver.ClassOf(err) != driver.ClassConfig {
						t.Errorf("%s: %v", starts[i].list, err)
					}
				}
				for list, n := range started {
					if n != 2 || len(started) != 1 {
						t.Errorf("%d of 2 started with %s, of %v", n, list, started)
					}
				}
				if len(started) == 0 {
					t.Errorf("nobody started: %v", errs)
				}
				for _, one := range d {
					mustExec(t, openAdmin(t, one), "DELETE FROM shard")
				}
			}
		})
	}
}

// TestSharded_renew answers in the order of the requests, whichever shard has a key.
func TestSharded_renew(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			d := databases(t, engine, 2)
			s := sharded(t, map[string]*stack.Database{"a": d[0], "b": d[1]})
			const keys = 16
			at := make(map[string]int)
			var rs []driver.Renewal
			for i := range keys {
				key := fmt.Sprintf("ns/k%d", i)
				at[s.of(key).Name]++
				g, err := s.Claim(t.Context(), claimOf(key))
				if err != nil {
					t.Fatal(err)
				}
				row, err := s.Of(key).Show(t.Context(), key)
				if err != nil || !row.Held || row.Fence != g.Fence {
					t.Errorf("%s on its shard: %+v, %v", key, row, err)
				}
				r := driver.Renewal{Key: key, Token: g.Token, TTL: time.Duration(1+i) * time.Minute, Until: g.Until}
				if i%5 == 3 {
					r.Token = driver.NewToken()
				}
				rs = append(rs, r)
			}
			if len(at) != 2 {
				t.Fatalf("all keys are on one shard: %v", at)
			}
			before := time.Now()
			answers := s.Renew(t.Context(), rs)
			if len(answers) != keys {
				t.Fatalf("%d answers to %d requests", len(answers), keys)
			}
			for i, answer := range answers {
				if i%5 == 3 {
					if lossReason(answer.Err) != driver.LossTaken {
						t.Errorf("%s with a token that is not its: %+v", rs[i].Key, answer)
					}
					continue
				}
				// Each has a TTL of its own, so the answer of another would show.
				if got := answer.Until.Sub(before) - rs[i].TTL; answer.Err != nil || got < -busyLimit || got > busyLimit {
					t.Errorf("%s: %+v, %v off", rs[i].Key, answer, got)
				}
			}
		})
	}
}

// TestSharded_close waits for what every shard owes, and names what is left and where.
func TestSharded_close(t *testing.T) {
	t.Parallel()
	d := databases(t, stack.MariaDB, 2)
	p := proxied(t, d[0])
	s, err := NewSharded(Shard{"a", open(t, d[0].DSNAt(p.Addr()))}, Shard{"b", open(t, d[1].DSN(), WithTimeout(time.Second))})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Timeout(); got != time.Second {
		t.Errorf("Timeout is %v, of 500ms and 1s", got)
	}
	keys := make(map[string]string)
	for i := 0; len(keys) < 2; i++ {
		key := fmt.Sprintf("ns/k%d", i)
		keys[s.of(key).Name] = key
	}
	g, err := s.Claim(t.Context(), claimOf(keys["a"]))
	if err != nil {
		t.Fatal(err)
	}
	p.BlackHole()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Release(gone, releaseOf(keys["a"], g)); !errors.Is(err, context.Canceled) {
		t.Fatalf("Release: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err = s.Close(ctx)
	var left *LeftError
	if !errors.As(err, &left) || len(left.Keys) != 1 || left.Keys[0] != keys["a"] || !strings.Contains(err.Error(), `shard "a"`) ||
		strings.Contains(err.Error(), `shard "b"`) {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	for _, key := range keys {
		if _, err := s.Claim(t.Context(), claimOf(key)); !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", key, err)
		}
	}
}

// TestSharded_oneDown kills the server of one shard: its keys meet that, the others go
// on, and the health of the tier does not suffer.
func TestSharded_oneDown(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			testOneDown(t, engine)
		})
	}
}

func testOneDown(t *testing.T, engine stack.Engine) {
	servers := map[string]*stack.Server{"a": stack.StartSQL(t, engine), "b": stack.StartSQL(t, engine)}
	of := make(map[string]*stack.Database)
	for name, server := range servers {
		d := server.CreateDatabase(t)
		if err := EnsureSchema(t.Context(), openAdmin(t, d)); err != nil {
			t.Fatal(err)
		}
		of[name] = d
	}
	s := sharded(t, of, WithTimeout(2*time.Second))
	l, err := tier.New(nil, s, tier.WithWait(5*time.Second), tier.WithTTL(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = l.Close(ctx) // what is left on the dead server is named
	})
	keys := map[string][]string{}
	for i := range 40 {
		key := fmt.Sprintf("k%d", i)
		name := s.of("default/" + key).Name
		keys[name] = append(keys[name], key)
	}
	locks := func(key string) error {
		return l.Do(t.Context(), key, func(context.Context, *tier.Lease) error { return nil })
	}
	for _, all := range keys {
		for _, key := range all {
			if err := locks(key); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := servers["a"].Kill(); err != nil {
		t.Fatal(err)
	}
	var dead sync.WaitGroup
	for _, key := range keys["a"][:10] {
		dead.Go(func() {
			if err := locks(key); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("a key of the shard that is down: %v", err)
			}
		})
	}
	for range 5 {
		for _, key := range keys["b"] {
			if err := locks(key); err != nil {
				t.Errorf("a key of the other: %v", err)
			}
		}
	}
	dead.Wait()
	for _, key := range keys["b"] {
		if err := locks(key); err != nil {
			t.Errorf("a key of the other, later: %v", err)
		}
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
	if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), `shard "a"`) {
		t.Errorf("check: %v", err)
	}

	var seen observed
	s.Observe(seen.add)
	claims := func(name string) []driver.Call {
		if g, err := s.Claim(t.Context(), claimOf("default/"+keys[name][0])); err == nil {
			mustRelease(t, s.Of("default/"+keys[name][0]), "default/"+keys[name][0], g)
		}
		failed, _ := seen.since()
		return failed
	}
	claims("b") // answers, which makes it the one that is up
	if failed := claims("a"); len(failed) > 0 {
		t.Errorf("the tier fails while a shard answers: %v", failed)
	}
	if err := servers["b"].Kill(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "a"} {
		if failed := claims(name); len(failed) == 0 {
			t.Errorf("all are down, and the failure of %s was not told", name)
		}
	}
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), `shard "a"`) || !strings.Contains(err.Error(), `shard "b"`) {
		t.Errorf("ping with all down: %v", err)
	}
}
