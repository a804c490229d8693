// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/breaker"
)

func TestListen_callsBack_L3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		var seen []breaker.State
		x.Listen(func(c breaker.Change) {
			seen = append(seen, x.State())
			x.Report(errDown)
			x.Report(nil)
			_, _, _ = x.RetryAfter(), x.OpenSince(), x.Err()
			x.Listen(func(breaker.Change) {})()
		})
		x.fail(5)
		synctest.Wait()
		require.Equal(t, []breaker.State{breaker.Partial}, seen)
		x.probesAnswer(nil)
		pass(501 * time.Millisecond)
		require.Equal(t, []breaker.State{breaker.Partial, breaker.Closed}, seen)
	})
}

func TestListen_blocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		x.probesAnswer(nil)
		release := make(chan struct{})
		var kept []breaker.State
		x.Listen(func(c breaker.Change) {
			<-release
			kept = append(kept, c.To)
		})
		for range 10 { // x has a listener of its own, which goes on
			x.fail(5)
			require.Equal(t, breaker.Partial, x.State())
			require.Equal(t, breaker.Partial, x.next(t, time.Second).To)
			require.Equal(t, breaker.Closed, x.next(t, time.Second).To)
		}
		require.Empty(t, kept)
		close(release)
		synctest.Wait()
		require.Len(t, kept, 20)
		for i, s := range kept {
			require.Equal(t, []breaker.State{breaker.Partial, breaker.Closed}[i%2], s)
		}
	})
}

func TestListen_stop(t *testing.T) {
	for name, end := range map[string]func(x *tier, stop func()){
		"stop":  func(_ *tier, stop func()) { stop() },
		"Close": func(x *tier, _ func()) { x.Close() },
	} {
		t.Run(name+" from inside", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTier(t, breaker.Settings{})
				x.probesAnswer(nil)
				calls := 0
				var stop func()
				stop = x.Listen(func(breaker.Change) {
					calls++
					time.Sleep(2 * time.Second) // the next change is in the queue by then
					end(x, stop)
					stop()
				})
				x.fail(5)
				pass(time.Minute)
				require.Equal(t, 1, calls)
			})
		})
		t.Run(name+" while it is blocked", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTier(t, breaker.Settings{})
				release := make(chan struct{})
				calls := 0
				stop := x.Listen(func(breaker.Change) { calls++; <-release })
				x.fail(5)
				pass(2 * time.Minute)
				end(x, stop)
				close(release)
				synctest.Wait()
				require.Equal(t, 1, calls)
			})
		})
	}
}

func TestListen_goexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		calls := 0
		x.Listen(func(breaker.Change) { calls++; runtime.Goexit() })
		x.fail(5)
		pass(2 * time.Minute)
		require.Equal(t, 2, calls, "it hears of the next change")
	})
}

// Many goroutines move it as fast as it goes; every listener hears one chain of
// changes, and all the same.
func TestListen_order(t *testing.T) {
	const changes = 200
	h, err := breaker.New("mysql", breaker.Settings{ProbeEvery: 2 * time.Millisecond, GlobalAfter: 2 * time.Millisecond},
		func(context.Context) error { return nil })
	require.NoError(t, err)
	defer h.Close()

	var listening sync.WaitGroup
	heard := make([][]breaker.Change, 4)
	for i := range heard {
		listening.Add(1)
		h.Listen(func(c breaker.Change) {
			if len(heard[i]) == changes {
				return
			}
			_ = h.State()
			if heard[i] = append(heard[i], c); len(heard[i]) == changes {
				listening.Done()
			}
		})
	}
	done := make(chan struct{})
	var reporting sync.WaitGroup
	for range 16 {
		reporting.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					h.Report(errDown)
					runtime.Gosched()
				}
			}
		})
	}
	listening.Wait()
	close(done)
	reporting.Wait()

	at := breaker.Closed
	var since time.Time
	for _, c := range heard[0] {
		require.Equal(t, at, c.From)
		require.NotEqual(t, c.From, c.To)
		require.False(t, c.At.Before(since))
		at, since = c.To, c.At
	}
	for _, other := range heard[1:] {
		require.Equal(t, heard[0], other)
	}
}
