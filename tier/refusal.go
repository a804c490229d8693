// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

const (
	// patience is how long one and the same foreign mark is believed before a
	// caller looks past it at the authority. Promise P9 allows a second; the
	// rest is for the timers of those who ask once a second.
	patience = 950 * time.Millisecond
	// refusalMemory is how long a mark is remembered that nobody met again.
	refusalMemory = 10 * time.Second
)

// refusals remembers since when which foreign mark stands in the way, per key
// and across calls, so that a caller who only ever tries once a second gets
// past a stale mark too (promise P9).
type refusals struct {
	mu   sync.Mutex
	seen map[string]refusal
	next int // size at which the forgotten ones are swept out
}

type refusal struct {
	mark        driver.Token
	first, last time.Time
}

func newRefusals() *refusals {
	return &refusals{seen: make(map[string]refusal), next: 64}
}

// see notes that mark refused somebody now and returns for how long it has
// been known to.
func (r *refusals) see(key string, mark driver.Token, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, known := r.seen[key]
	if !known || s.mark != mark {
		s = refusal{mark: mark, first: now}
	}
	s.last = now
	r.seen[key] = s
	if len(r.seen) >= r.next {
		for k, old := range r.seen {
			if now.Sub(old.last) > refusalMemory {
				delete(r.seen, k)
			}
		}
		r.next = max(64, 2*len(r.seen))
	}
	return now.Sub(s.first)
}

// forget drops a key whose mark is ours now.
func (r *refusals) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, key)
}
