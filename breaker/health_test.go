// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestReport_callers_L1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		for range 500 {
			x.Report(context.Canceled)
			x.Report(fmt.Errorf("claim: %w", context.DeadlineExceeded))
		}
		require.Equal(t, breaker.Closed, x.State())

		// They are no successes either: between failures they hide nothing.
		x.fail(4)
		for range 1000 {
			x.Report(context.Canceled)
		}
		require.Equal(t, breaker.Closed, x.State())
		x.fail(1)
		require.Equal(t, breaker.Partial, x.State())
	})
}

func TestReport_classes(t *testing.T) {
	for class, opens := range map[driver.Class]bool{
		driver.ClassUnknown:    true,
		driver.ClassContention: false,
		driver.ClassCaller:     false,
		driver.ClassTransient:  true,
		driver.ClassDown:       true,
		driver.ClassConfig:     true,
		driver.Class(99):       true,
	} {
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTier(t, breaker.Settings{})
				err := &driver.Error{Tier: "mysql", Op: "claim", Class: class, Err: errors.New("x")}
				for range 5 {
					x.Report(err)
				}
				require.Equal(t, opens, x.State() != breaker.Closed)
			})
		})
	}
}

func TestReport_contention_L5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		for range 1000 { // it is a success, so that failures are not in a row
			x.fail(4)
			x.Report(errHeld)
		}
		require.Equal(t, breaker.Closed, x.State())

		x.fail(5)
		require.Equal(t, breaker.Partial, x.State())
		x.probesAnswer(&driver.Error{Tier: "mysql", Op: "probe", Class: driver.ClassContention, Err: errors.New("deadlock")})
		pass(500 * time.Millisecond)
		require.Equal(t, breaker.Closed, x.State(), "an answer is an answer")
	})
}

func TestReport_contentionAndCancellations_L5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		for i := range 100_000 {
			switch i % 10 {
			case 3:
				x.Report(context.Canceled)
			default:
				x.Report(errHeld)
			}
			if i%100 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		synctest.Wait()
		require.Empty(t, x.changes)
		require.Equal(t, breaker.Closed, x.State())
		require.Empty(t, x.probes(), "nobody asks a tier that serves")
	})
}

// An outage takes as long to be seen on a cold start as after minutes of
// healthy traffic, and after a failure that nobody remembers.
func TestHealth_moments(t *testing.T) {
	for name, before := range map[string]func(*tier){
		"cold start":             func(*tier) {},
		"after healthy traffic":  func(x *tier) { x.traffic(5*time.Minute, nil) },
		"after contention":       func(x *tier) { x.traffic(5*time.Minute, errHeld) },
		"after an old failure":   func(x *tier) { x.fail(1); time.Sleep(5 * time.Minute) },
		"after a closed failure": func(x *tier) { x.fail(1); x.traffic(time.Minute, nil) },
		"after an outage": func(x *tier) {
			x.fail(5)
			x.probesAnswer(nil)
			time.Sleep(30 * time.Second)
			<-x.changes
			<-x.changes
			x.probesAnswer(errDown)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTier(t, breaker.Settings{})
				before(x)
				began := time.Now()
				x.fail(5)
				require.Equal(t, breaker.Partial, x.State(), "at once")
				require.Equal(t, began, x.OpenSince())
				pass(time.Minute - 1)
				require.Equal(t, breaker.Partial, x.State())
				pass(1)
				require.Equal(t, breaker.Global, x.State())
				require.Equal(t, began, x.OpenSince())

				require.Equal(t, breaker.Change{
					Tier: "mysql", From: breaker.Closed, To: breaker.Partial, At: began, Cause: errDown,
				}, <-x.changes)
				require.Equal(t, breaker.Change{
					Tier: "mysql", From: breaker.Partial, To: breaker.Global, At: began.Add(time.Minute), Cause: errDown,
				}, <-x.changes)

				x.probesAnswer(nil)
				pass(500 * time.Millisecond)
				require.Equal(t, breaker.Closed, x.State(), "a probe closes global as well")
				c := <-x.changes
				require.Equal(t, breaker.Global, c.From)
				require.Equal(t, breaker.Closed, c.To)
				require.NoError(t, c.Cause)
				require.Empty(t, x.changes)
				require.Zero(t, x.OpenSince())
				require.NoError(t, x.Err())
			})
		})
	}
}

// The same with traffic all along: the window of the ratio must not be faster,
// nor healthy minutes before make it slower.
func TestHealth_momentsUnderTraffic(t *testing.T) {
	for name, healthy := range map[string]time.Duration{"cold start": 0, "after healthy traffic": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTier(t, breaker.Settings{})
				x.traffic(healthy, nil)
				began := time.Now()
				go x.traffic(2*time.Minute, errDown)
				c := x.next(t, time.Second)
				require.Equal(t, breaker.Partial, c.To)
				require.Equal(t, 400*time.Millisecond, c.At.Sub(began), "the fifth failure")
				c = x.next(t, 2*time.Minute)
				require.Equal(t, breaker.Global, c.To)
				require.Equal(t, time.Minute, c.At.Sub(began), "a minute after the first failure")
				pass(2 * time.Minute)
			})
		})
	}
}

// Calls that fail a few times and then succeed are never six in a row: what
// opens global here is the ratio alone.
func TestHealth_ratio(t *testing.T) {
	const never = time.Duration(-1)
	for _, c := range []struct {
		name     string
		before   func(*tier)
		every    time.Duration
		failures int // to each success
		calls    int
		opens    time.Duration // after the first failure
	}{
		{"spread over the span", nil, time.Second, 4, 61, time.Minute},
		{"not quite the span", nil, time.Second, 4, 60, never},
		{"many, but not over the span", nil, 100 * time.Millisecond, 4, 599, never},
		{"after healthy traffic", func(x *tier) { x.traffic(5*time.Minute, nil) }, time.Second, 4, 61, time.Minute},
		{"after a failure long ago", func(x *tier) { x.fail(1); pass(16 * time.Second) }, time.Second, 4, 61, time.Minute},
		{"after failures that were made good", func(x *tier) {
			x.fail(4)
			for range 4 {
				x.Report(nil)
			}
			pass(10 * time.Second)
		}, time.Second, 4, 61, time.Minute},
		{"after failures that were not", func(x *tier) {
			x.fail(4)
			for range 3 {
				x.Report(nil)
			}
			pass(10 * time.Second)
		}, time.Second, 5, 61, 50 * time.Second},
		{"too few fail", nil, time.Second, 3, 1000, never},
		{"too few calls", nil, 10 * time.Second, 4, 19, never},
		{"enough calls", nil, 10 * time.Second, 4, 21, 200 * time.Second},
		{"too far apart to be spread over it", nil, 16 * time.Second, 4, 1000, never},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTier(t, breaker.Settings{Consecutive: 6, ProbeEvery: time.Minute})
				if c.before != nil {
					c.before(x)
				}
				began := time.Now()
				for i := range c.calls {
					if i%(c.failures+1) < c.failures {
						x.Report(errDown)
					} else {
						x.Report(nil)
					}
					pass(c.every)
				}
				if c.opens == never {
					require.Empty(t, x.changes)
					return
				}
				got := x.next(t, time.Second)
				require.Equal(t, breaker.Closed, got.From)
				require.Equal(t, breaker.Global, got.To)
				require.Equal(t, c.opens, got.At.Sub(began))
				require.Equal(t, got.At, x.OpenSince())
				x.probesAnswer(nil)
				require.Equal(t, breaker.Closed, x.next(t, time.Minute).To)
			})
		})
	}
}

func TestHealth_ratio_exactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{Ratio: 0.75, MinCalls: 8, MinSpan: 42 * time.Second})
		for _, err := range []error{errDown, errDown, nil, errDown, errDown, errDown, nil, errDown} {
			require.Equal(t, breaker.Closed, x.State())
			x.Report(err)
			pass(6 * time.Second)
		}
		require.Equal(t, breaker.Global, x.State(), "6 of 8, over 42 s")
	})
}

func TestHealth_halfOfTheCallsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		for range 10_000 {
			x.Report(errDown)
			x.Report(nil)
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, breaker.Closed, x.State())
	})
}

// Renewals are answered and claims are not: the tier is no ruin, and it is not
// whole either.
func TestHealth_successWhileOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		x.fail(5)
		for range 59 {
			pass(10 * time.Second)
			x.Report(nil)
			synctest.Wait()
			require.Equal(t, breaker.Partial, x.State())
		}
		last := time.Now()
		<-x.changes
		c := x.next(t, 2*time.Minute)
		require.Equal(t, breaker.Global, c.To)
		require.Equal(t, time.Minute, c.At.Sub(last), "a minute of silence after the last success")

		for range 100 {
			x.Report(nil)
		}
		require.Equal(t, breaker.Global, x.State())
	})
}

func TestHealth_halfOpen_L4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{Consecutive: 3, ProbeEvery: time.Second})
		began := time.Now()
		x.fail(3)
		require.Equal(t, time.Second, x.RetryAfter())
		pass(2500 * time.Millisecond)
		require.Len(t, x.probes(), 2, "a failed probe leaves it open and another follows")
		require.Equal(t, breaker.Partial, x.State())
		require.Equal(t, 500*time.Millisecond, x.RetryAfter())

		x.probesAnswer(nil)
		pass(500 * time.Millisecond)
		require.Equal(t, breaker.Closed, x.State(), "one answered probe is enough")
		require.Zero(t, x.RetryAfter())
		require.Equal(t, []time.Time{began.Add(time.Second), began.Add(2 * time.Second), began.Add(3 * time.Second)}, x.probes())

		x.fail(2) // what failed before it closed is not in this row
		require.Equal(t, breaker.Closed, x.State())
		x.fail(1)
		require.Equal(t, breaker.Partial, x.State())
		pass(time.Minute)
		require.Len(t, x.probes(), 4, "and none followed while it was closed")
	})
}

func TestHealth_flapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		x.probesAnswer(nil)
		for range 300 { // more than two minutes, and never a minute of outage
			x.fail(5)
			c := <-x.changes
			require.Equal(t, breaker.Partial, c.To)
			c = <-x.changes
			require.Equal(t, breaker.Closed, c.To)
		}
		require.Len(t, x.probes(), 300)
	})
}

func TestHealth_Err(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		require.NoError(t, x.Err())
		refused := errors.New("probe: refused")
		x.probesAnswer(refused)
		x.fail(5)
		require.Equal(t, errDown, x.Err())
		pass(501 * time.Millisecond)
		require.Equal(t, refused, x.Err())
		x.probesAnswer(nil)
		pass(time.Second)
		require.NoError(t, x.Err())
		require.Equal(t, refused, x.LastErr())
	})
}

func TestHealth_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTier(t, breaker.Settings{})
		x.fail(5)
		pass(time.Second)
		<-x.changes
		n := len(x.probes())
		x.Close()
		x.Close()
		x.fail(100)
		x.Report(nil)
		pass(5 * time.Minute)
		require.Equal(t, breaker.Partial, x.State(), "what was known last")
		require.Len(t, x.probes(), n)
		require.Empty(t, x.changes)
	})
}

func TestHealth_Close_whileClosed(t *testing.T) {
	x := newTier(t, breaker.Settings{})
	x.Close()
	x.fail(100)
	require.Equal(t, breaker.Closed, x.State())
	require.Empty(t, x.changes)
}

func TestReport_allocations(t *testing.T) {
	x := newTier(t, breaker.Settings{})
	require.Zero(t, testing.AllocsPerRun(1000, func() { x.Report(nil) }))
	x.fail(2)
	x.Report(nil)
	x.Report(nil)
	require.Zero(t, testing.AllocsPerRun(1000, func() { x.Report(nil) }), "nor for long after a failure")
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if x.State() != breaker.Closed || x.RetryAfter() != 0 {
			panic("open")
		}
	}))
}

func BenchmarkReport(b *testing.B) {
	for name, err := range map[string]error{"success": nil, "contention": errHeld, "caller": context.Canceled} {
		b.Run(name, func(b *testing.B) {
			x := newTier(b, breaker.Settings{})
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					x.Report(err)
				}
			})
		})
	}
	b.Run("failure while open", func(b *testing.B) {
		x := newTier(b, breaker.Settings{ProbeEvery: time.Hour, GlobalAfter: time.Hour})
		x.fail(5)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				x.Report(errDown)
			}
		})
	})
	b.Run("failure and success", func(b *testing.B) {
		x := newTier(b, breaker.Settings{})
		b.ReportAllocs()
		for b.Loop() {
			x.Report(errDown)
			x.Report(nil)
		}
	})
}

func BenchmarkState(b *testing.B) {
	x := newTier(b, breaker.Settings{})
	b.ReportAllocs()
	for b.Loop() {
		if x.State() != breaker.Closed {
			b.Fatal("open")
		}
	}
}
