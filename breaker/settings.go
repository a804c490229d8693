// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"cmp"
	"fmt"
	"time"
)

// Settings says when a tier is given up. The zero value of a field means its
// default.
type Settings struct {
	// Consecutive failures open Partial. Default: 5.
	Consecutive uint32
	// ProbeEvery is the time from the start of one probe to that of the next
	// while the tier is not closed, and from its opening to the first. Default:
	// 500 ms.
	ProbeEvery time.Duration
	// ProbeTimeout is when a probe that has not answered has failed. Default: the
	// longer of ProbeEvery and 500 ms.
	ProbeTimeout time.Duration
	// GlobalAfter is how long Partial may be open without a success before Global
	// opens. Default: 60 s.
	GlobalAfter time.Duration
	// Ratio of failures among the calls since the first of them opens Global.
	// Default: 0.8.
	Ratio float64
	// MinCalls is how many calls the ratio needs. Default: 20.
	MinCalls uint32
	// MinSpan is the time over which those calls must be spread. Default: 60 s.
	MinSpan time.Duration
}

// minProbeEvery keeps a probe from following the one before it without a pause.
const minProbeEvery = 2 * probePause

// SettingError is a value that cannot work.
type SettingError struct {
	Field  string // as in Settings
	Value  any
	Reason string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("breaker: %s is %v: %s", e.Field, e.Value, e.Reason)
}

// Validate returns a *[SettingError] for the first value that cannot work.
func (s Settings) Validate() error {
	d := s.withDefaults()
	for _, c := range []struct {
		ok     bool
		field  string
		value  any
		reason string
	}{
		{d.ProbeEvery >= minProbeEvery, "ProbeEvery", s.ProbeEvery, fmt.Sprintf("must be at least %v", minProbeEvery)},
		{d.ProbeTimeout > 0, "ProbeTimeout", s.ProbeTimeout, "must not be negative"},
		{d.GlobalAfter > 0, "GlobalAfter", s.GlobalAfter, "must not be negative"},
		{
			d.GlobalAfter >= d.ProbeEvery, "GlobalAfter", d.GlobalAfter,
			fmt.Sprintf("must not be under ProbeEvery (%v): the tier would be given up before it was asked", d.ProbeEvery),
		},
		{d.Ratio > 0 && d.Ratio <= 1, "Ratio", s.Ratio, "must be above 0 and at most 1"},
		{d.MinSpan > 0, "MinSpan", s.MinSpan, "must not be negative"},
	} {
		if !c.ok {
			return &SettingError{Field: c.field, Value: c.value, Reason: c.reason}
		}
	}
	return nil
}

func (s Settings) withDefaults() Settings {
	s.Consecutive = cmp.Or(s.Consecutive, 5)
	s.ProbeEvery = cmp.Or(s.ProbeEvery, 500*time.Millisecond)
	s.ProbeTimeout = cmp.Or(s.ProbeTimeout, max(s.ProbeEvery, 500*time.Millisecond))
	s.GlobalAfter = cmp.Or(s.GlobalAfter, time.Minute)
	s.Ratio = cmp.Or(s.Ratio, 0.8)
	s.MinCalls = cmp.Or(s.MinCalls, 20)
	s.MinSpan = cmp.Or(s.MinSpan, time.Minute)
	return s
}
