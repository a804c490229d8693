// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// tenure is one holder's turn as the holder saw it.
type tenure struct {
	Product int           `json:"p"`
	Level   level         `json:"l,omitempty"`
	Wait    time.Duration `json:"d"` // how long Acquire took
	From    instant       `json:"f"` // when Acquire had returned
	Until   instant       `json:"u"` // see end
	Wrote   instant       `json:"w,omitempty"`
}

// level says which tiers stood behind a turn; it is empty without a lock.
type level string

const (
	levelFull      level = "full"
	levelAuthority level = "authority"
	levelFilter    level = "filter"
	levelLocal     level = "local"
)

// end is when the turn is over for everyone. A turn ends when its holder begins
// to give it back, or at the deadline its lock gave it: a holder that was
// stopped past it is promised nothing any more. But whoever wrote was in the
// shop: a write that was accepted, however late, keeps the turn going until
// the moment before its COMMIT was sent. With a guard that moment lies within
// the lease, for the lease row stays locked from the confirmation to the
// COMMIT; without one it is where a late writer is caught.
func (t tenure) end() instant { return max(t.Until, t.Wrote) }
