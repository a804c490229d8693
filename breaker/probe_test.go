// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/breaker"
)

// Three probes go wrong and the fourth is answered: it closes, and when it does
// shows that none of the three was waited for longer than allowed.
func TestProbe_wrong_L2(t *testing.T) {
	for _, c := range []struct {
		name  string
		wrong func(ctx context.Context, forever <-chan struct{}) error
		err   string
	}{
		{"hangs until its context ends", func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return ctx.Err() }, ""},
		{"hangs and ignores its context", func(_ context.Context, forever <-chan struct{}) error { <-forever; return nil }, "not answered in time"},
		{"ends its goroutine", func(context.Context, <-chan struct{}) error { runtime.Goexit(); return nil }, "ended its goroutine"},
		{"panics", func(context.Context, <-chan struct{}) error { panic("boom") }, "probe panicked: boom"},
		{"panics with nil", func(context.Context, <-chan struct{}) error { panic(nil) }, "probe panicked"},
		{"fails", func(context.Context, <-chan struct{}) error { return errDown }, "refused"},
		{"was cancelled, so it says", func(context.Context, <-chan struct{}) error { return context.Canceled }, "canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				forever := make(chan struct{})
				var n atomic.Int32
				h, err := breaker.New("mysql", breaker.Settings{}, func(ctx context.Context) error {
					if n.Add(1) <= 3 {
						return c.wrong(ctx, forever)
					}
					return nil
				})
				require.NoError(t, err)
				defer h.Close()
				defer close(forever)
				for range 5 {
					h.Report(errDown)
				}
				pass(2*time.Second - 50*time.Millisecond)
				require.Equal(t, breaker.Partial, h.State())
				require.ErrorContains(t, h.Err(), c.err)
				pass(60 * time.Millisecond)
				require.Equal(t, breaker.Closed, h.State())
				require.EqualValues(t, 4, n.Load())
			})
		})
	}
}

func TestProbe_ignoringItsContext_isBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var running, started atomic.Int32
		h, err := breaker.New("mysql", breaker.Settings{}, func(context.Context) error {
			started.Add(1)
			running.Add(1)
			defer running.Add(-1)
			<-release
			return nil
		})
		require.NoError(t, err)
		defer h.Close()
		for range 5 {
			h.Report(errDown)
		}
		pass(10 * time.Minute)
		require.EqualValues(t, 4, running.Load())
		require.EqualValues(t, 4, started.Load())
		require.Equal(t, breaker.Global, h.State())
		require.ErrorContains(t, h.Err(), "earlier ones have not returned")

		release <- struct{}{} // a late answer is none, but it makes room
		synctest.Wait()
		require.Equal(t, breaker.Global, h.State())
		pass(time.Second)
		require.EqualValues(t, 5, started.Load())
		close(release)
		pass(time.Second)
		require.Equal(t, breaker.Closed, h.State())
	})
}

func TestProbe_oneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		h, err := breaker.New("mysql", breaker.Settings{ProbeEvery: 100 * time.Millisecond, ProbeTimeout: time.Second}, func(ctx context.Context) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			select {
			case <-time.After(950 * time.Millisecond):
			case <-ctx.Done():
			}
			return errDown
		})
		require.NoError(t, err)
		defer h.Close()
		for range 5 {
			h.Report(errDown)
		}
		pass(150 * time.Millisecond)
		require.Equal(t, 50*time.Millisecond, h.RetryAfter())
		pass(100 * time.Millisecond)
		require.Positive(t, h.RetryAfter(), "0 would mean closed")
		pass(10 * time.Second)
		require.EqualValues(t, 1, most.Load())
	})
}

func TestProbe_endsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		h, err := breaker.New("mysql", breaker.Settings{ProbeTimeout: time.Hour}, func(ctx context.Context) error {
			<-ctx.Done()
			cause = ctx.Err()
			return nil
		})
		require.NoError(t, err)
		for range 5 {
			h.Report(errDown)
		}
		pass(time.Second)
		h.Close()
		synctest.Wait()
		require.ErrorIs(t, cause, context.Canceled)
		require.Equal(t, breaker.Partial, h.State(), "what it answered then is no answer")
	})
}

func TestProbe_mayCallAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h *breaker.Health
		h, err := breaker.New("mysql", breaker.Settings{}, func(context.Context) error {
			h.Report(errDown)
			h.Report(nil)
			h.Listen(func(breaker.Change) {})()
			_ = h.RetryAfter()
			h.Close()
			return nil
		})
		require.NoError(t, err)
		for range 5 {
			h.Report(errDown)
		}
		pass(time.Second)
	})
}
