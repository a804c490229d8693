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
func sharded(t *testing.T, of map[string]*stack.Database) *Sharded {
	t.Helper()
	var all []Shard
	for name, d := range of {
		all = append(all, Shard{name, open(t, d.DSN())})
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

// TestSharded_list refuses to start with another list than the databases know.
func TestSharded_list(t *testing.T) {
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
				"swapped":  {"a": d[1], "b": d[0]},
				"renamed":  {"a": d[0], "c": d[1]},
				"one less": {"a": d[0]},
				"one more": {"a": d[0], "b": d[1], "c": d[2]},
			} {
				err := sharded(t, of).Check(t.Context())
				if driver.ClassOf(err) != driver.ClassConfig || !strings.Contains(err.Error(), `"a,b"`) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := sharded(t, same).Check(t.Context()); err != nil {
				t.Errorf("the first list, after all: %v", err)
			}
		})
	}
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		d := databases(t, stack.MariaDB, 3)
		lists := []*Sharded{
			sharded(t, map[string]*stack.Database{"a": d[0], "b": d[1]}), sharded(t, map[string]*stack.Database{"b": d[1], "c": d[2]}),
		}
		errs := make([]error, len(lists))
		var both sync.WaitGroup
		for i, s := range lists {
			both.Go(func() { errs[i] = s.Check(t.Context()) })
		}
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("two lists with a shard in common: %v", errs)
		}
	})
	for what, shards := range map[string][]Shard{
		"none": nil, "no authority": {{Name: "a"}}, "a bad name": {{Name: "A b", Authority: &Authority{}}},
		"two of a name": {{Name: "a", Authority: &Authority{}}, {Name: "a", Authority: &Authority{}}},
	} {
		if _, err := NewSharded(shards...); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSharded_oneDown kills the server of one shard: its keys meet that, the others go
// on, and the health of the tier does not suffer.
func TestSharded_oneDown(t *testing.T) {
	t.Parallel()
	servers := map[string]*stack.Server{"a": stack.StartSQL(t, stack.MariaDB), "b": stack.StartSQL(t, stack.MariaDB)}
	of := make(map[string]*stack.Database)
	for name, server := range servers {
		d := server.CreateDatabase(t)
		if err := EnsureSchema(t.Context(), openAdmin(t, d)); err != nil {
			t.Fatal(err)
		}
		of[name] = d
	}
	s := sharded(t, of)
	l, err := tier.New(nil, s, tier.WithWait(2*time.Second), tier.WithTTL(5*time.Second))
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
}
