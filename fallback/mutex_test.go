// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier/driver"
)

var a, b, c = driver.NewToken(), driver.NewToken(), driver.NewToken()

const ttl = time.Minute

func TestReentrantMutex_lineOfHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.Lock(t.Context(), "k", a, ttl))
		var got []int
		for i := range 100 {
			go func() {
				h := driver.NewToken()
				if err := m.Lock(t.Context(), "k", h, ttl); err != nil {
					t.Error(err)
				}
				got = append(got, i) // the mutex is what guards it
				if err := m.Unlock("k", h); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait() // it waits before the next one comes
			require.Equal(t, i+1, m.QueueLength("k"))
		}
		require.ErrorIs(t, m.TryLock("k", b, ttl), fallback.ErrHeld)
		require.NoError(t, m.Unlock("k", a))
		synctest.Wait()
		require.Len(t, got, 100)
		require.IsIncreasing(t, got)
		require.Zero(t, m.Len())
		require.Zero(t, m.QueueLength("k"))
	})
}

func TestReentrantMutex_reentry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.TryLock("k", a, ttl))
		waiting := make(chan error, 1)
		go func() { waiting <- m.Lock(t.Context(), "k", b, ttl) }()
		synctest.Wait()

		require.NoError(t, m.TryLock("k", a, ttl), "who holds does not stand in line")
		require.NoError(t, m.Lock(t.Context(), "k", a, ttl))
		require.Equal(t, 3, m.HoldCount("k", a))
		require.Zero(t, m.HoldCount("k", b))
		require.Zero(t, m.HoldCount("other", a))

		require.NoError(t, m.Unlock("k", a))
		require.NoError(t, m.Unlock("k", a))
		synctest.Wait()
		require.Empty(t, waiting)
		require.NoError(t, m.Unlock("k", a))
		synctest.Wait()
		require.NoError(t, <-waiting)
		require.Equal(t, 1, m.HoldCount("k", b))
		require.ErrorIs(t, m.Unlock("k", a), fallback.ErrNotYours)
		require.NoError(t, m.Unlock("k", b))
	})
}

func TestReentrantMutex_reentry_time(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		left := func() time.Duration {
			left, held := m.Holds("k", a)
			require.True(t, held)
			return left
		}
		require.NoError(t, m.TryLock("k", a, 10*time.Second))
		require.NoError(t, m.TryLock("k", a, time.Second))
		require.Equal(t, 10*time.Second, left(), "the inner one does not shorten the outer")
		require.NoError(t, m.TryLock("k", a, 20*time.Second))
		require.Equal(t, 20*time.Second, left())
		require.NoError(t, m.Unlock("k", a))
		pass(15 * time.Second)
		require.Equal(t, 5*time.Second, left(), "the first timer is out of date")
		pass(5 * time.Second)
		require.Zero(t, m.Len())
	})
}

func TestReentrantMutex_waitersOfOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.TryLock("k", a, ttl))
		in := make(chan string, 3)
		enter := func(name string, h driver.Token, ttl time.Duration) {
			go func() {
				if err := m.Lock(t.Context(), "k", h, ttl); err != nil {
					t.Error(err)
				}
				in <- name // one holder's goroutines do not exclude each other
			}()
			synctest.Wait()
		}
		enter("b", b, ttl)
		enter("c", c, ttl)
		enter("b again", b, 2*ttl)
		require.NoError(t, m.Unlock("k", a))
		synctest.Wait()
		require.ElementsMatch(t, []string{"b", "b again"}, []string{<-in, <-in}, "or b would wait for itself")
		require.Empty(t, in)
		require.Equal(t, 2, m.HoldCount("k", b))
		left, _ := m.Holds("k", b)
		require.Equal(t, 2*ttl, left)
		require.NoError(t, m.Unlock("k", b))
		require.NoError(t, m.Unlock("k", b))
		synctest.Wait()
		require.Equal(t, 1, m.HoldCount("k", c))
		require.NoError(t, m.Unlock("k", c))
	})
}

// A holder is a token: where it is presented does not matter.
func TestReentrantMutex_otherGoroutine_F1(t *testing.T) {
	var m fallback.ReentrantMutex
	require.NoError(t, m.TryLock("k", a, ttl))
	done := make(chan error)
	go func() { done <- m.Unlock("k", a) }()
	require.NoError(t, <-done)
	require.Zero(t, m.Len())
}

// With more keys than any number of stripes, each is as free as if it were
// alone, and is freed alone.
func TestReentrantMutex_keysShareNothing_F3(t *testing.T) {
	var m fallback.ReentrantMutex
	const keys = 5000
	tokens := make([]driver.Token, keys)
	for i := range tokens {
		tokens[i] = driver.NewToken()
		require.NoError(t, m.TryLock(key(i), tokens[i], ttl))
		require.NoError(t, m.TryLock(key(i), tokens[i], ttl))
	}
	require.Equal(t, keys, m.Len())
	for i := range tokens {
		require.NoError(t, m.Unlock(key(i), tokens[i]))
		require.Equal(t, 1, m.HoldCount(key(i), tokens[i]))
		require.NoError(t, m.Unlock(key(i), tokens[i]))
		require.ErrorIs(t, m.Unlock(key(i), tokens[i]), fallback.ErrNotHeld)
		require.Equal(t, keys-i-1, m.Len())
	}
}

func key(i int) string { return fmt.Sprintf("key-%d", i) }

// Two keys at a time, in an order that no stripe knows of.
func TestReentrantMutex_pairs_F4(t *testing.T) {
	var m fallback.ReentrantMutex
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var working sync.WaitGroup
	for w := range 16 {
		working.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for range 10_000 / 16 {
				x := rnd.IntN(999)
				y := x + 1 + rnd.IntN(999-x)
				h := driver.NewToken()
				for _, k := range []int{x, y} {
					if err := m.Lock(ctx, key(k), h, ttl); err != nil {
						t.Errorf("%d of (%d, %d): %v", k, x, y, err)
						return
					}
				}
				for _, k := range []int{x, y} {
					if err := m.Unlock(key(k), h); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	working.Wait()
	require.Zero(t, m.Len())
}

// What was locked once is not remembered, and what is held is not evicted.
func TestReentrantMutex_manyKeys_F5(t *testing.T) {
	var m fallback.ReentrantMutex
	require.NoError(t, m.TryLock("held", a, time.Hour))
	heap := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	round := func(from, n int) {
		for i := from; i < from+n; i++ {
			k := key(i)
			if err := m.TryLock(k, b, ttl); err != nil {
				t.Fatal(err)
			}
			if err := m.Unlock(k, b); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(0, 10_000)
	before := heap()
	n := 300_000
	if os.Getenv("TIERLOCK_SOAK") == "1" {
		n = 10_000_000
	}
	round(10_000, n)
	require.Less(t, heap(), before+1<<20)
	require.Equal(t, 1, m.Len())
	require.NoError(t, m.Unlock("held", a))
}

func TestReentrantMutex_firstUse_F6(t *testing.T) {
	for range 100 {
		var m fallback.ReentrantMutex
		var in atomic.Int32
		var trying sync.WaitGroup
		for range 100 {
			trying.Go(func() {
				if m.TryLock("k", driver.NewToken(), ttl) == nil {
					in.Add(1)
				}
			})
		}
		trying.Wait()
		require.EqualValues(t, 1, in.Load())
	}
}

func TestReentrantMutex_expiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		began := time.Now()
		require.NoError(t, m.TryLock("k", a, 10*time.Second))
		require.NoError(t, m.TryLock("k", a, 10*time.Second))
		for i, h := range []driver.Token{b, c} {
			go func() {
				if err := m.Lock(t.Context(), "k", h, 5*time.Second); err != nil {
					t.Error(err)
				}
				if want := began.Add(10*time.Second + time.Duration(i)*5*time.Second); !time.Now().Equal(want) {
					t.Errorf("let in at %v, want %v", time.Now(), want)
				}
			}()
			synctest.Wait()
		}
		pass(10*time.Second - 1)
		left, held := m.Holds("k", a)
		require.True(t, held)
		require.Equal(t, time.Duration(1), left)
		pass(1)
		_, held = m.Holds("k", a)
		require.False(t, held, "however often it was entered")
		require.Zero(t, m.HoldCount("k", a))
		left, held = m.Holds("k", b)
		require.True(t, held)
		require.Equal(t, 5*time.Second, left, "a full time of its own")

		require.ErrorIs(t, m.Unlock("k", a), fallback.ErrExpired)
		require.ErrorIs(t, m.Renew("k", a, ttl), fallback.ErrExpired)
		require.ErrorIs(t, m.Expire("k", a), fallback.ErrExpired)
		require.ErrorIs(t, m.TryLock("k", a, ttl), fallback.ErrHeld, "it stands in line like anybody")
		require.Equal(t, 1, m.HoldCount("k", b), "b has what it had")
		require.Equal(t, 1, m.QueueLength("k"))

		pass(10 * time.Second)
		require.Zero(t, m.Len(), "nobody holds, and nobody had to come and see")
		for _, h := range []driver.Token{a, b, c} {
			require.ErrorIs(t, m.Unlock("k", h), fallback.ErrExpired)
		}
		require.ErrorIs(t, m.Unlock("k", driver.NewToken()), fallback.ErrNotHeld)
		require.ErrorIs(t, m.Unlock("other", a), fallback.ErrNotHeld)
	})
}

// How late a timer is must not decide what a caller is told: here it cannot run,
// since nothing lets it.
func TestReentrantMutex_expiry_beforeItsTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ask := range []func(*fallback.ReentrantMutex) bool{
			func(m *fallback.ReentrantMutex) bool { return m.Unlock("k", a) != nil },
			func(m *fallback.ReentrantMutex) bool { return m.Renew("k", a, ttl) != nil },
			func(m *fallback.ReentrantMutex) bool { return m.TryLock("k", b, ttl) == nil },
			func(m *fallback.ReentrantMutex) bool { _, held := m.Holds("k", a); return !held },
			func(m *fallback.ReentrantMutex) bool { return m.HoldCount("k", a) == 0 },
			func(m *fallback.ReentrantMutex) bool { return m.Lock(t.Context(), "k", b, ttl) == nil },
		} {
			var m fallback.ReentrantMutex
			reached := make(chan bool, 1)
			// Of two timers of one moment the older runs first.
			time.AfterFunc(time.Second, func() { reached <- ask(&m) })
			require.NoError(t, m.TryLock("k", a, time.Second))
			pass(time.Second)
			require.True(t, <-reached)
			pass(2 * ttl)
			require.Zero(t, m.Len())
		}
	})
}

func TestReentrantMutex_Renew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.ErrorIs(t, m.Renew("k", a, ttl), fallback.ErrNotHeld)
		require.NoError(t, m.TryLock("k", a, 10*time.Second))
		require.ErrorIs(t, m.Renew("k", b, ttl), fallback.ErrNotYours)
		for range 10 {
			pass(9 * time.Second)
			require.NoError(t, m.Renew("k", a, 10*time.Second))
		}
		waited := make(chan time.Time, 1)
		go func() {
			if err := m.Lock(t.Context(), "k", b, ttl); err != nil {
				t.Error(err)
			}
			waited <- time.Now()
		}()
		synctest.Wait()
		require.NoError(t, m.Renew("k", a, 2*time.Second), "sooner as well")
		pass(2*time.Second - 1)
		require.Empty(t, waited)
		pass(1)
		require.Len(t, waited, 1)
		require.ErrorIs(t, m.Unlock("k", a), fallback.ErrExpired)
		require.NoError(t, m.Unlock("k", b))
	})
}

func TestReentrantMutex_Expire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.TryLock("k", a, ttl))
		require.NoError(t, m.TryLock("k", a, ttl))
		require.ErrorIs(t, m.Expire("k", b), fallback.ErrNotYours)
		waiting := make(chan error, 1)
		go func() { waiting <- m.Lock(t.Context(), "k", b, 10*time.Second) }()
		synctest.Wait()
		require.NoError(t, m.Expire("k", a))
		synctest.Wait()
		require.NoError(t, <-waiting)
		require.ErrorIs(t, m.Unlock("k", a), fallback.ErrExpired)
		pass(10*time.Second - 1)
		require.Equal(t, 1, m.Len())
		pass(1)
		require.Zero(t, m.Len())
	})
}

func TestReentrantMutex_successorsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.TryLock("k", a, time.Hour))
		waiting := make(chan error, 1)
		go func() { waiting <- m.Lock(t.Context(), "k", b, 5*time.Second) }()
		pass(10 * time.Second)
		require.NoError(t, m.Unlock("k", a))
		require.NoError(t, <-waiting)
		left, held := m.Holds("k", b)
		require.True(t, held)
		require.Equal(t, 5*time.Second, left, "its own, from now: neither a's nor since it came")
		pass(5 * time.Second)
		require.Zero(t, m.Len())
	})
}

func TestReentrantMutex_givingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.TryLock("k", a, ttl))
		began := time.Now()
		require.ErrorIs(t, m.TryLockFor(t.Context(), "k", b, ttl, 3*time.Second), fallback.ErrHeld)
		require.Equal(t, 3*time.Second, time.Since(began))
		require.ErrorIs(t, m.TryLockFor(t.Context(), "k", b, ttl, 0), fallback.ErrHeld)
		require.Equal(t, 3*time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.Lock(ctx, "k", b, ttl), context.DeadlineExceeded)
		require.Equal(t, 4*time.Second, time.Since(began))
		require.ErrorIs(t, m.Lock(ctx, "free", b, ttl), context.DeadlineExceeded, "a context that has ended gets nothing")
		require.ErrorIs(t, m.TryLockFor(ctx, "free", b, ttl, 0), context.DeadlineExceeded)
		require.ErrorIs(t, m.TryLockFor(ctx, "free", b, ttl, time.Second), context.DeadlineExceeded)
		require.Zero(t, m.QueueLength("k"))
		require.Equal(t, 1, m.Len())

		// Whoever gives up in the middle of the line leaves the order as it is.
		var got []string
		var waiting sync.WaitGroup
		giveUp, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, w := range []struct {
			ctx  context.Context
			name string
		}{{giveUp, "first"}, {t.Context(), "second"}, {giveUp, "third"}, {t.Context(), "fourth"}} {
			waiting.Go(func() {
				h := driver.NewToken()
				if err := m.Lock(w.ctx, "k", h, ttl); err != nil {
					return
				}
				got = append(got, w.name)
				if err := m.Unlock("k", h); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		require.Equal(t, 2, m.QueueLength("k"))
		require.NoError(t, m.Unlock("k", a))
		waiting.Wait()
		require.Equal(t, []string{"second", "fourth"}, got)
		require.Zero(t, m.Len())
	})
}

func TestReentrantMutex_TryLockFor_letIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		require.NoError(t, m.TryLock("k", a, time.Second))
		require.NoError(t, m.TryLockFor(t.Context(), "k", b, ttl, 2*time.Second))
		require.NoError(t, m.Unlock("k", b))
		require.NoError(t, m.TryLockFor(t.Context(), "k", c, ttl, 0))
		require.NoError(t, m.Unlock("k", c))
	})
}

func TestReentrantMutex_badInput(t *testing.T) {
	var m fallback.ReentrantMutex
	for _, err := range []error{
		m.TryLock("k", driver.Token{}, ttl),
		m.Lock(t.Context(), "k", driver.Token{}, ttl),
		m.TryLock("k", a, 0),
		m.Lock(t.Context(), "k", a, -1),
		m.TryLockFor(t.Context(), "k", a, 0, time.Second),
	} {
		require.Error(t, err)
	}
	require.NoError(t, m.TryLock("k", a, ttl))
	require.Error(t, m.Renew("k", a, 0))
	require.NoError(t, m.Unlock("k", a))
}

// Only so many expired holds are remembered; the others are merely not held.
func TestReentrantMutex_remembersSoMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fallback.ReentrantMutex
		for i := range 2500 {
			require.NoError(t, m.TryLock(key(i), a, time.Second))
			require.NoError(t, m.Expire(key(i), a))
		}
		require.ErrorIs(t, m.Unlock(key(1499), a), fallback.ErrNotHeld)
		require.ErrorIs(t, m.Unlock(key(1500), a), fallback.ErrExpired)
		require.ErrorIs(t, m.Unlock(key(2499), a), fallback.ErrExpired)
	})
}

// Everything at once: waits that are given up just as they are let in, holds
// that expire just as they are given back. Each key's owner is written without
// synchronisation, for the race detector to see.
func TestReentrantMutex_storm(t *testing.T) {
	var m fallback.ReentrantMutex
	const keys = 3
	var owner [keys]int
	var held [keys]int
	var working sync.WaitGroup
	for w := range 24 {
		working.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(w)))
			for range 400 {
				k, h := rnd.IntN(keys), driver.NewToken()
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(500))*time.Microsecond)
				err := m.Lock(ctx, key(k), h, ttl)
				cancel()
				if err != nil {
					continue
				}
				owner[k] = w
				held[k]++
				runtime.Gosched()
				if owner[k] != w {
					t.Error("two holders")
				}
				if rnd.IntN(4) == 0 {
					err = m.Expire(key(k), h)
				} else {
					err = m.Unlock(key(k), h)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for w := range 4 { // these are let in nowhere where the owner is looked at
		working.Go(func() {
			for i := range 400 {
				h := driver.NewToken()
				if m.TryLockFor(t.Context(), "short", h, time.Duration(1+i%3)*10*time.Microsecond, time.Millisecond) == nil && (i+w)%2 == 0 {
					_ = m.Unlock("short", h) // may have expired
				}
			}
		})
	}
	working.Wait()
	for k := range keys {
		require.Positive(t, held[k])
	}
	require.Eventually(t, func() bool { return m.Len() == 0 }, 10*time.Second, time.Millisecond)
}

func BenchmarkReentrantMutex(b *testing.B) {
	b.Run("free", func(b *testing.B) {
		var m fallback.ReentrantMutex
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			if m.Lock(ctx, "k", a, ttl) != nil || m.Unlock("k", a) != nil {
				b.Fatal("held")
			}
		}
	})
	b.Run("re-entry", func(b *testing.B) {
		var m fallback.ReentrantMutex
		ctx := b.Context()
		_ = m.Lock(ctx, "k", a, ttl)
		b.ReportAllocs()
		for b.Loop() {
			if m.Lock(ctx, "k", a, ttl) != nil || m.Unlock("k", a) != nil {
				b.Fatal("held")
			}
		}
		_ = m.Unlock("k", a)
	})
	b.Run("refused", func(b *testing.B) {
		var m fallback.ReentrantMutex
		_ = m.TryLock("k", a, ttl)
		b.ReportAllocs()
		for b.Loop() {
			if m.TryLock("k", c, ttl) == nil {
				b.Fatal("free")
			}
		}
		_ = m.Unlock("k", a)
	})
	b.Run("one key, many holders", func(b *testing.B) {
		var m fallback.ReentrantMutex
		ctx := b.Context()
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			h := driver.NewToken()
			for pb.Next() {
				if m.Lock(ctx, "k", h, ttl) != nil || m.Unlock("k", h) != nil {
					b.Error("held")
				}
			}
		})
	})
}
