// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

func namedLocks(t *testing.T, db *sql.DB, opts ...NamedLockOption) *NamedLocks {
	t.Helper()
	l, err := NewNamedLocks(db, append([]NamedLockOption{WithPingInterval(50 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// own is a namespace that no other test of the shared server has.
func own(d *stack.Database) NamedLockOption { return WithNamedNamespace(d.Name) }

// TestNamedLock_excludes has one holder at a time, and gives every connection back.
func TestNamedLock_excludes(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		db := business(t, d)
		l := namedLocks(t, db, own(d))
		var inside, most atomic.Int32
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for range 3 {
					lock, err := l.Acquire(t.Context(), "report")
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if n := inside.Add(1); n > most.Load() {
						most.Store(n)
					}
					inside.Add(-1)
					if err := lock.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
					if err := lock.Release(t.Context()); err != nil || !errors.Is(lock.Err(), context.Canceled) {
						t.Errorf("once more: %v, %v", err, lock.Err())
					}
				}
			})
		}
		all.Wait()
		if most.Load() != 1 || db.Stats().InUse != 0 {
			t.Errorf("%d holders at once, %d connections in use", most.Load(), db.Stats().InUse)
		}
	})
}

// TestNamedLock_names keeps apart what the server would merge, refuse or cut.
func TestNamedLock_names(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		l := namedLocks(t, business(t, d), own(d))
		names := []string{
			"a", "A", "a ", " a", "ä", "a\u0308", "Ä", "a\x00", "a\xff", "ß", "ss",
			strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 66), strings.Repeat("x", 255),
		}
		var held []*NamedLock
		for _, name := range names {
			lock, err := l.TryAcquire(t.Context(), name)
			if err != nil {
				t.Errorf("%q: %v", name, err)
				continue
			}
			held = append(held, lock)
			if _, err := l.TryAcquire(t.Context(), name); !errors.Is(err, ErrNamedHeld) {
				t.Errorf("%q again: %v", name, err)
			}
		}
		for _, lock := range held {
			if err := lock.Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
		}
		for _, name := range []string{"", strings.Repeat("x", 321)} {
			if _, err := l.TryAcquire(t.Context(), name); !errors.Is(err, ErrKey) {
				t.Errorf("%d bytes: %v", len(name), err)
			}
		}
		for _, opt := range []NamedLockOption{WithNamedNamespace("No"), WithNamedNamespace(""), WithPingInterval(0)} {
			if _, err := NewNamedLocks(business(t, d), opt); !errors.Is(err, ErrOption) {
				t.Errorf("a bad option: %v", err)
			}
		}
	})
}

// TestNamedLock_cancelled has a wait end without leaving anything behind.
func TestNamedLock_cancelled_B1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		db := business(t, d)
		l := namedLocks(t, db, own(d))
		holder, err := l.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for _, wait := range []time.Duration{100 * time.Millisecond, 2500 * time.Millisecond} {
			for _, cancels := range []bool{false, true} {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				if cancels {
					time.AfterFunc(wait/2, cancel)
				}
				start := time.Now()
				if _, err := l.Acquire(ctx, "k"); err == nil || ctx.Err() == nil {
					t.Errorf("a wait of %v: %v", wait, err)
				}
				if took := time.Since(start); took > wait+2*time.Second {
					t.Errorf("a wait of %v took %v", wait, took)
				}
				cancel()
			}
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		next, err := l.Acquire(ctx, "k") // nobody who has gone away has it
		if err != nil {
			t.Fatal(err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := next.Release(ended); err != nil {
			t.Errorf("release on a context that has ended: %v", err)
		}
		if n := db.Stats().InUse; n != 0 {
			t.Errorf("%d connections in use", n)
		}
	})
}

// TestNamedLock_lost tells a holder whose connection is gone.
func TestNamedLock_lost(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, d *stack.Database, lock *NamedLock, proxy *stack.Proxy){
		"killed": func(t *testing.T, d *stack.Database, lock *NamedLock, _ *stack.Proxy) {
			admin := openAdmin(t, d)
			var id int64
			if err := admin.QueryRowContext(t.Context(), "SELECT IS_USED_LOCK(?)", lock.named).Scan(&id); err != nil {
				t.Fatal(err)
			}
			if _, err := admin.ExecContext(t.Context(), fmt.Sprintf("KILL %d", id)); err != nil {
				t.Fatal(err)
			}
		},
		"silent": func(_ *testing.T, _ *stack.Database, _ *NamedLock, proxy *stack.Proxy) { proxy.BlackHole() },
		"given away on its own connection": func(t *testing.T, _ *stack.Database, lock *NamedLock, _ *stack.Proxy) {
			if _, err := lock.conn.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", lock.named); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothEngines(t, func(t *testing.T, d *stack.Database) {
				proxy := proxied(t, d)
				db, err := sql.Open("mysql", d.DSNAt(proxy.Addr())+"?interpolateParams=true")
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close() //nolint:errcheck // of no interest
				lock, err := namedLocks(t, db, own(d)).Acquire(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				lose(t, d, lock, proxy)
				select {
				case <-lock.Context().Done():
				case <-time.After(10 * time.Second):
					t.Fatal("nobody noticed")
				}
				if err := lock.Err(); !errors.Is(err, ErrNamedLost) {
					t.Errorf("the holder was told %v", err)
				}
				start := time.Now()
				if err := lock.Release(t.Context()); !errors.Is(err, ErrNamedLost) {
					t.Errorf("release: %v", err)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("release took %v", took)
				}
				if n := db.Stats().InUse; n != 0 {
					t.Errorf("%d connections in use", n)
				}
				_ = proxy.Heal()
			})
		})
	}
}
