// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// The errors of a [ReentrantMutex] do not name the key: whoever asked knows it,
// and may have been told to hide it.
var (
	// ErrHeld means that another holder has the key.
	ErrHeld = errors.New("fallback: held by another")
	// ErrNotHeld means that nobody holds the key.
	ErrNotHeld = errors.New("fallback: not held")
	// ErrNotYours means that another holder has the key, and that the caller's
	// hold, if there was one, has not expired but was given back.
	ErrNotYours = errors.New("fallback: held by another, not by you")
	// ErrExpired means that the caller's hold ended by its time to live: others
	// may have held the key since.
	ErrExpired = errors.New("fallback: hold expired")
)

// ReentrantMutex excludes holders in this process, key by key. A holder is a
// token, never a goroutine: whoever presents it re-enters, unlocks and renews.
// The zero value is ready; all methods are safe for concurrent use.
type ReentrantMutex struct {
	mu      sync.Mutex
	entries map[string]*entry
	expired graveyard
}

// entry is a key that is held. Waiters hang on it, so that it exists for as long
// as there is anybody, and goes with the last.
type entry struct {
	holder   driver.Token
	count    int
	deadline time.Time
	expiry   *time.Timer
	waiters  []*waiter // the first in line first
}

type waiter struct {
	holder driver.Token
	ttl    time.Duration
	in     chan struct{} // closed when it holds
}

// Lock waits for the key until ctx ends, and then holds it for ttl. A holder
// that has the key already enters once more, at once; its hold then ends ttl from
// now, unless it was to end later. Each Lock takes one Unlock.
func (m *ReentrantMutex) Lock(ctx context.Context, key string, holder driver.Token, ttl time.Duration) error {
	return m.lock(ctx, nil, key, holder, ttl)
}

// TryLockFor is Lock that gives up with ErrHeld when wait has passed.
func (m *ReentrantMutex) TryLockFor(ctx context.Context, key string, holder driver.Token, ttl, wait time.Duration) error {
	if wait <= 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		return m.TryLock(key, holder, ttl)
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	return m.lock(ctx, over.C, key, holder, ttl)
}

// TryLock is Lock that does not wait: ErrHeld when another has the key.
func (m *ReentrantMutex) TryLock(key string, holder driver.Token, ttl time.Duration) error {
	if err := check(holder, ttl); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.enter(key, holder, ttl) {
		return ErrHeld
	}
	return nil
}

func (m *ReentrantMutex) lock(ctx context.Context, over <-chan time.Time, key string, holder driver.Token, ttl time.Duration) error {
	if err := check(holder, ttl); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if m.enter(key, holder, ttl) {
		m.mu.Unlock()
		return nil
	}
	w := &waiter{holder: holder, ttl: ttl, in: make(chan struct{})}
	e := m.entries[key]
	e.waiters = append(e.waiters, w)
	m.mu.Unlock()

	var err error
	select {
	case <-w.in:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-over:
		err = ErrHeld
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(e.waiters, w)
	if i < 0 { // it was let in meanwhile
		return nil
	}
	e.waiters = slices.Delete(e.waiters, i, i+1)
	return err
}

func check(holder driver.Token, ttl time.Duration) error {
	if holder.IsZero() {
		return errors.New("fallback: the zero token holds nothing")
	}
	if ttl <= 0 {
		return fmt.Errorf("fallback: a hold of %v is none: the time to live must be above 0", ttl)
	}
	return nil
}

// enter makes holder hold the key, unless another does; under m.mu.
func (m *ReentrantMutex) enter(key string, holder driver.Token, ttl time.Duration) bool {
	e := m.live(key)
	if e != nil {
		if e.holder != holder {
			return false
		}
		e.count++
		e.lengthen(ttl)
		return true
	}
	if m.entries == nil {
		m.entries = make(map[string]*entry)
	}
	m.entries[key] = &entry{
		holder:   holder,
		count:    1,
		deadline: time.Now().Add(ttl),
		expiry: time.AfterFunc(ttl, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.live(key)
		}),
	}
	return true
}

// lengthen lets the hold run for ttl from now, if it would end sooner.
func (e *entry) lengthen(ttl time.Duration) {
	if deadline := time.Now().Add(ttl); deadline.After(e.deadline) {
		e.deadline = deadline
		e.expiry.Reset(ttl)
	}
}

// live returns the entry of a key whose hold has not expired, nil when there is
// none. It ends a hold whose time has come, so that what a caller is told does
// not depend on how late the timer is; under m.mu.
func (m *ReentrantMutex) live(key string) *entry {
	for {
		e := m.entries[key]
		if e == nil || time.Now().Before(e.deadline) {
			return e
		}
		m.expired.bury(key, e.holder)
		m.pass(key, e)
	}
}

// pass ends the hold of e and lets the first waiter in, together with every
// other waiter of the same holder, who would otherwise wait for itself.
func (m *ReentrantMutex) pass(key string, e *entry) {
	if len(e.waiters) == 0 {
		e.expiry.Stop()
		delete(m.entries, key)
		return
	}
	e.holder = e.waiters[0].holder
	e.count = 0
	e.deadline = time.Time{}
	e.waiters = slices.DeleteFunc(e.waiters, func(w *waiter) bool {
		if w.holder != e.holder {
			return false
		}
		e.count++
		e.lengthen(w.ttl)
		close(w.in)
		return true
	})
}

// own returns the entry that holder holds, or says why there is none; under m.mu.
func (m *ReentrantMutex) own(key string, holder driver.Token) (*entry, error) {
	e := m.live(key)
	switch {
	case e != nil && e.holder == holder:
		return e, nil
	case m.expired.has(key, holder):
		return nil, ErrExpired
	case e != nil:
		return nil, ErrNotYours
	}
	return nil, ErrNotHeld
}

// Unlock undoes one Lock; the last one lets the next holder in. When the hold has
// ended it changes nothing and returns ErrExpired, ErrNotYours or ErrNotHeld;
// that it was by expiry is remembered for the latest thousand.
func (m *ReentrantMutex) Unlock(key string, holder driver.Token) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.own(key, holder)
	if err != nil {
		return err
	}
	if e.count--; e.count == 0 {
		m.pass(key, e)
	}
	return nil
}

// Renew lets the hold end ttl from now, sooner or later than it would have.
func (m *ReentrantMutex) Renew(key string, holder driver.Token, ttl time.Duration) error {
	if err := check(holder, ttl); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.own(key, holder)
	if err != nil {
		return err
	}
	e.deadline = time.Time{}
	e.lengthen(ttl)
	return nil
}

// Expire ends the hold now, however often it was entered, as if its time had
// come.
func (m *ReentrantMutex) Expire(key string, holder driver.Token) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.own(key, holder)
	if err != nil {
		return err
	}
	e.deadline = time.Time{}
	m.live(key)
	return nil
}

// Holds reports whether holder has the key, and for how long.
func (m *ReentrantMutex) Holds(key string, holder driver.Token) (left time.Duration, held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.live(key)
	if e == nil || e.holder != holder {
		return 0, false
	}
	return time.Until(e.deadline), true
}

// HoldCount returns how many Unlocks the holder owes, 0 when it has not the key.
func (m *ReentrantMutex) HoldCount(key string, holder driver.Token) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.live(key)
	if e == nil || e.holder != holder {
		return 0
	}
	return e.count
}

// QueueLength returns how many callers wait for the key.
func (m *ReentrantMutex) QueueLength(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.live(key)
	if e == nil {
		return 0
	}
	return len(e.waiters)
}

// Len returns how many keys are held.
func (m *ReentrantMutex) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}
