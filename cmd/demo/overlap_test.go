// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestOverlaps(t *testing.T) {
	t.Parallel()
	shared := func(from, until, wrote instant) tenure {
		return tenure{Level: levelFull, From: from, Until: until, Wrote: wrote}
	}
	local := func(from, until instant) tenure { return tenure{Level: levelLocal, From: from, Until: until} }
	other := shared(0, 100, 0)
	other.Product = 1
	for name, c := range map[string]struct {
		log  []tenure
		want int64
	}{
		"none":                             {nil, 0},
		"one after another":                {[]tenure{shared(0, 10, 5), shared(10, 20, 15)}, 0},
		"in any order of the logs":         {[]tenure{shared(10, 20, 15), shared(0, 10, 5)}, 0},
		"into another's turn":              {[]tenure{shared(0, 10, 5), shared(9, 20, 15)}, 1},
		"two into one":                     {[]tenure{shared(0, 30, 5), shared(9, 12, 0), shared(20, 25, 0)}, 2},
		"a long turn behind a short one":   {[]tenure{shared(0, 30, 5), shared(1, 2, 0), shared(20, 25, 0)}, 2},
		"other products":                   {[]tenure{shared(0, 30, 5), other}, 0},
		"a frozen holder that was refused": {[]tenure{shared(0, 10, 0), shared(12, 20, 15)}, 0},
		"a frozen holder that wrote":       {[]tenure{shared(0, 10, 25), shared(12, 20, 15)}, 1},
		"a frozen holder that wrote late":  {[]tenure{shared(0, 10, 50), shared(12, 20, 15), shared(21, 30, 29), shared(51, 60, 59)}, 2},
		"local against local":              {[]tenure{local(0, 10), local(5, 15)}, 0},
		"local against the authority":      {[]tenure{shared(0, 10, 5), local(5, 15)}, 1},
		"the authority against local":      {[]tenure{local(0, 10), shared(5, 15, 8)}, 1},
		"local over local over authority":  {[]tenure{shared(0, 10, 5), local(1, 20), local(12, 15)}, 1},
	} {
		if got := overlaps(c.log); got != c.want {
			t.Errorf("%s: %d overlaps, want %d", name, got, c.want)
		}
	}
}
