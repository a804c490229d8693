// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
)

const (
	retry  = fallback.Retry
	local  = fallback.Local
	closed = fallback.FailClosed
)

func TestLadder_Validate(t *testing.T) {
	for _, c := range []struct {
		ladder fallback.Ladder
		at     int
		reason string
	}{
		{fallback.Ladder{retry, closed}, 0, ""},
		{fallback.Ladder{retry, local, closed}, 0, ""},
		{fallback.Ladder{local, closed}, 0, ""},
		{fallback.Ladder{closed}, 0, ""},
		{fallback.Ladder{retry}, 0, ""},
		{fallback.Ladder{retry, local}, 0, ""},
		{nil, 0, "is empty"},
		{fallback.Ladder{}, 0, "is empty"},
		{fallback.Ladder{closed, retry}, 1, "retry after fail_closed"},
		{fallback.Ladder{retry, closed, local}, 2, "local after fail_closed"},
		{fallback.Ladder{local, retry, closed}, 1, "retry after local"},
		{fallback.Ladder{retry, retry, closed}, 1, "retry stands there twice"},
		{fallback.Ladder{closed, closed}, 1, "fail_closed stands there twice"},
		{fallback.Ladder{retry, fallback.None}, 1, "none is unknown"},
		{fallback.Ladder{9, closed}, 0, "rung 9 is unknown"},
	} {
		t.Run(c.ladder.String(), func(t *testing.T) {
			err := c.ladder.Validate()
			if c.reason == "" {
				require.NoError(t, err)
				return
			}
			var bad *fallback.LadderError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, c.at, bad.At)
			require.ErrorContains(t, err, c.reason)
			require.ErrorContains(t, err, c.ladder.String())
		})
	}
	require.NoError(t, fallback.Default().Validate())
}

func TestLadder_Next(t *testing.T) {
	var (
		stop = fallback.Default()
		go30 = fallback.Ladder{retry, local, closed}
		hard = fallback.Ladder{closed}
		bare = fallback.Ladder{retry}
		some = fallback.Ladder{local, closed}
	)
	transient := fallback.Situation{Faulted: true, Retryable: true}
	config := fallback.Situation{Faulted: true}
	with := func(s fallback.Situation, change func(*fallback.Situation)) fallback.Situation {
		change(&s)
		return s
	}
	retried := func(n, of int) fallback.Situation {
		return with(transient, func(s *fallback.Situation) { s.Retries, s.Attempts = n, of })
	}
	open := func(h breaker.State, left time.Duration) fallback.Situation {
		return fallback.Situation{Health: h, LocalLeft: left}
	}
	for _, c := range []struct {
		name   string
		ladder fallback.Ladder
		s      fallback.Situation
		want   fallback.Rung
	}{
		{"nothing is wrong", stop, fallback.Situation{}, fallback.None},
		{"nothing is wrong, with time on local", go30, open(breaker.Closed, time.Second), fallback.None},

		{"a fault", stop, transient, retry},
		{"the second", stop, retried(1, 0), retry},
		{"the third", stop, retried(2, 0), closed},
		{"more attempts", stop, retried(2, 3), retry},
		{"fewer", stop, retried(1, 1), closed},
		{"no retry on the ladder", hard, transient, closed},
		{"a ladder that ends with retry", bare, retried(2, 0), closed},
		{"where a person is needed", stop, config, closed},
		{"the breaker is closed: no local yet", go30, with(retried(2, 0), func(s *fallback.Situation) { s.LocalLeft = time.Minute }), closed},
		{"nor without retry", some, with(transient, func(s *fallback.Situation) { s.LocalLeft = time.Minute }), closed},

		{"partial", stop, open(breaker.Partial, 0), closed},
		{"partial, no local on the ladder", stop, open(breaker.Partial, time.Minute), closed},
		{"partial: no retry either", stop, with(transient, func(s *fallback.Situation) { s.Health = breaker.Partial }), closed},
		{"partial with local", go30, open(breaker.Partial, time.Nanosecond), local},
		{"partial with local, met by this call", go30, with(transient, func(s *fallback.Situation) { s.Health, s.LocalLeft = breaker.Partial, time.Second }), local},
		{"local is used up", go30, open(breaker.Partial, 0), closed},
		{"and more", go30, open(breaker.Partial, -time.Second), closed},

		{"global", stop, open(breaker.Global, 0), closed},
		{"global with local", go30, open(breaker.Global, time.Minute), closed},
		{"global with a fault", go30, with(transient, func(s *fallback.Situation) { s.Health = breaker.Global }), closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, c.ladder.Next(c.s))
		})
	}
}

// Whatever the situation, a call gets a rung its policy has, or none, or is
// refused.
func TestLadder_Next_isOnTheLadder(t *testing.T) {
	for _, l := range []fallback.Ladder{nil, {retry}, {local}, {closed}, {retry, local}, {retry, closed}, {local, closed}, {retry, local, closed}} {
		for _, h := range []breaker.State{breaker.Closed, breaker.Partial, breaker.Global, 9} {
			for bits := range 8 {
				for retries := range 4 {
					s := fallback.Situation{Health: h, Faulted: bits&1 != 0, Retryable: bits&2 != 0, Retries: retries}
					if bits&4 != 0 {
						s.LocalLeft = time.Second
					}
					got := l.Next(s)
					switch got {
					case fallback.None:
						require.Equal(t, breaker.Closed, h)
						require.False(t, s.Faulted)
					case fallback.Retry, fallback.Local:
						require.True(t, slices.Contains(l, got), "%v gave %v for %+v", l, got, s)
					case fallback.FailClosed:
					default:
						require.Fail(t, "no rung", "%v", got)
					}
				}
			}
		}
	}
}

func BenchmarkLadder_Next(b *testing.B) {
	l := fallback.Default()
	s := fallback.Situation{Health: breaker.Partial}
	b.ReportAllocs()
	for b.Loop() {
		if l.Next(s) != fallback.FailClosed {
			b.Fatal("open")
		}
	}
}
