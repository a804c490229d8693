// SPDX-License-Identifier: Apache-2.0

package tier

import "fmt"

// Level says which tiers stand behind a lease. It is recorded when the lease is
// granted, decides how the lease is renewed, verified and released, and never
// changes.
type Level uint8

const (
	// LevelNone is the zero value: no lease.
	LevelNone Level = iota
	// LevelFull is a lease of the authority whose mark stands in the filter.
	LevelFull
	// LevelAuthority is a lease of the authority alone: the filter was out, or
	// the locker has none. It is as exclusive and as well fenced as LevelFull.
	LevelAuthority
	// LevelFilter is a mark in the filter alone. It has no fence.
	LevelFilter
	// LevelLocal excludes goroutines of this process only. It has no fence.
	LevelLocal
)

func (l Level) String() string {
	switch l {
	case LevelNone:
		return "none"
	case LevelFull:
		return "full"
	case LevelAuthority:
		return "authority"
	case LevelFilter:
		return "filter"
	case LevelLocal:
		return "local"
	}
	return fmt.Sprintf("level %d", uint8(l))
}
