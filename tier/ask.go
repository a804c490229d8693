// SPDX-License-Identifier: Apache-2.0

package tier

import "time"

// ask is what a caller asked for. Which terms it comes to depends on the key's
// policy, and may change with it while the caller waits.
type ask struct {
	options []AcquireOption
	once    bool      // look once, whatever the wait
	end     time.Time // of a wait that several acquires share; zero: the terms' own
}

// terms of an acquire under a policy.
func (k ask) terms(p *policy) terms {
	t := p.terms.with(k.options)
	once := k.once || t.wait == 0
	if !k.end.IsZero() {
		t.wait = max(time.Until(k.end), time.Millisecond)
	}
	if once {
		t = t.lookOnce()
	}
	return t
}

// until is the same with a wait that ends then.
func (k ask) until(end time.Time) ask {
	k.end = end
	return k
}

// shared returns the end of the wait that acquires of several keys share, the
// shortest of their policies', and whether it is none.
func (l *Locker) shared(keys []string) (end time.Time, once bool) {
	set := l.policies.Load()
	wait := set.find(keys[0]).terms.wait
	for _, key := range keys[1:] {
		wait = min(wait, set.find(key).terms.wait)
	}
	if wait == 0 {
		return time.Now().Add(boundWithoutContext), true
	}
	return time.Now().Add(wait), false
}
