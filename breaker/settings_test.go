// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/breaker"
)

func TestSettings_Validate(t *testing.T) {
	for _, c := range []struct {
		name  string
		s     breaker.Settings
		field string
	}{
		{"defaults", breaker.Settings{}, ""},
		{"a demo's", breaker.Settings{Consecutive: 2, ProbeEvery: 100 * time.Millisecond, GlobalAfter: time.Second, MinSpan: time.Second}, ""},
		{"all of them", breaker.Settings{Ratio: 1}, ""},
		{"probes without a pause", breaker.Settings{ProbeEvery: time.Microsecond}, "ProbeEvery"},
		{"negative cadence", breaker.Settings{ProbeEvery: -time.Second}, "ProbeEvery"},
		{"negative timeout", breaker.Settings{ProbeTimeout: -1}, "ProbeTimeout"},
		{"negative outage", breaker.Settings{GlobalAfter: -1}, "GlobalAfter"},
		{"given up before it was asked", breaker.Settings{GlobalAfter: 400 * time.Millisecond}, "GlobalAfter"},
		{"asked after it was given up", breaker.Settings{ProbeEvery: 2 * time.Minute}, "GlobalAfter"},
		{"negative ratio", breaker.Settings{Ratio: -0.1}, "Ratio"},
		{"percent", breaker.Settings{Ratio: 80}, "Ratio"},
		{"no number", breaker.Settings{Ratio: math.NaN()}, "Ratio"},
		{"negative span", breaker.Settings{MinSpan: -1}, "MinSpan"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := breaker.New("mysql", c.s, func(context.Context) error { return nil })
			if c.field == "" {
				require.NoError(t, err)
				h.Close()
				return
			}
			var bad *breaker.SettingError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, c.field, bad.Field)
			require.NotEmpty(t, bad.Reason)
			require.Contains(t, err.Error(), c.field)
			require.Nil(t, h)
		})
	}
}

func TestNew_withoutAProbe(t *testing.T) {
	_, err := breaker.New("mysql", breaker.Settings{}, nil)
	require.ErrorContains(t, err, "no probe")
}
