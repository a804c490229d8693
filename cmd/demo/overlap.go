// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
)

// overlaps counts the turns that began while another holder's turn on the same
// product was still going on. Two local turns do not count against each other:
// that level promises nothing between processes.
func overlaps(tenures []tenure) int64 {
	byProduct := map[int][]tenure{}
	for _, t := range tenures {
		byProduct[t.Product] = append(byProduct[t.Product], t)
	}
	var n int64
	for _, turns := range byProduct {
		slices.SortFunc(turns, func(a, b tenure) int { return cmp.Compare(a.From, b.From) })
		var latest, latestShared instant // ends of the turns so far: of all, and of all that are not local
		for _, t := range turns {
			against := latest
			if t.Level == levelLocal {
				against = latestShared
			}
			if t.From < against {
				n++
			}
			latest = max(latest, t.end())
			if t.Level != levelLocal {
				latestShared = max(latestShared, t.end())
			}
		}
	}
	return n
}
