// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
)

var errWork = errors.New("the work failed")

// TestDo_releases whatever way its function ends.
func TestDo_releases(t *testing.T) {
	for name, c := range map[string]struct {
		work func(ctx context.Context, l *tier.Lease) error
		want error // nil where Do does not return
	}{
		"return": {func(context.Context, *tier.Lease) error { return nil }, nil},
		"error":  {func(context.Context, *tier.Lease) error { return errWork }, errWork},
		"panic":  {func(context.Context, *tier.Lease) error { panic(errWork) }, nil},
		"goexit": {func(context.Context, *tier.Lease) error { runtime.Goexit(); return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithTTL(ttl))
				var inner context.Context
				ended := make(chan any, 1)
				returned := false
				go func() {
					defer func() { ended <- recover() }()
					err := r.Do(t.Context(), "k", func(ctx context.Context, l *tier.Lease) error {
						inner = ctx
						if ctx.Err() != nil || l.Fence() == 0 || !r.row(t, "k").Held {
							t.Error("not held inside")
						}
						return c.work(ctx, l)
					})
					returned = true
					if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
						t.Errorf("Do: %v, want %v", err, c.want)
					}
				}()
				panicked := <-ended
				if (panicked != nil) != (name == "panic") {
					t.Errorf("recovered %v", panicked)
				}
				if returned != (name == "return" || name == "error") {
					t.Errorf("returned: %v", returned)
				}
				if inner.Err() == nil {
					t.Error("the function's context outlives Do")
				}
				synctest.Wait()
				r.clean(t)
				next := r.must(t, "k", tier.WithWait(0))
				if err := next.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestDo_joinsBothContexts ends the function's context with the caller's and
// with the lease.
func TestDo_joinsBothContexts(t *testing.T) {
	t.Run("caller", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, tier.WithTTL(ttl))
			ctx, cancel := context.WithCancelCause(t.Context())
			err := r.Do(ctx, "k", func(inner context.Context, l *tier.Lease) error {
				cancel(errWork)
				<-inner.Done()
				if !errors.Is(context.Cause(inner), errWork) {
					t.Errorf("cause %v", context.Cause(inner))
				}
				return inner.Err()
			})
			if !errors.Is(err, context.Canceled) || errors.Is(err, tier.ErrLost) {
				t.Errorf("Do: %v", err)
			}
			synctest.Wait()
			r.clean(t) // released on the dead context (B5)
		})
	})
	t.Run("caller's deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, tier.WithTTL(ttl))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			err := r.Do(ctx, "k", func(inner context.Context, l *tier.Lease) error {
				if _, has := inner.Deadline(); !has {
					t.Error("the caller's deadline is not to be seen")
				}
				<-inner.Done()
				return inner.Err()
			})
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("Do: %v after %v", err, time.Since(start))
			}
		})
	})
	t.Run("loss", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, tier.WithTTL(ttl))
			err := r.Do(t.Context(), "k", func(inner context.Context, l *tier.Lease) error {
				r.authority.Revoke()
				<-inner.Done()
				if !errors.Is(context.Cause(inner), tier.ErrLost) {
					t.Errorf("cause %v", context.Cause(inner))
				}
				return nil
			})
			if !errors.Is(err, tier.ErrLost) {
				t.Errorf("Do: %v, want ErrLost although the function returned nil", err)
			}
		})
	})
}

func TestDo_notAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.WithTTL(ttl))
		held := r.must(t, "k")
		err := r.Do(t.Context(), "k", func(context.Context, *tier.Lease) error {
			t.Error("ran without the key")
			return nil
		}, tier.WithWait(0))
		if !errors.Is(err, tier.ErrHeld) {
			t.Errorf("Do: %v, want ErrHeld", err)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
