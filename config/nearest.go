// SPDX-License-Identifier: Apache-2.0

package config

// nearest returns the one of names that takes the fewest letters inserted, left
// out or replaced to be made of name, and how many it takes.
func nearest(name string, names []string) (near string, by int) {
	by = -1
	for _, candidate := range names {
		if d := distance(name, candidate); by < 0 || d < by {
			near, by = candidate, d
		}
	}
	return near, by
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
