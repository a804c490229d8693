// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

var _ driver.Filter = (*Filter)(nil)

// Filter is an in-memory driver.Filter.
type Filter struct {
	Outage
	*marks
}

// marks is what the filters of one [Filter.Join] family share.
type marks struct {
	mu      sync.Mutex
	byKey   map[string]mark
	waiting map[string]map[chan struct{}]struct{}
}

type mark struct {
	driver.Mark
	until time.Time
}

// NewFilter returns an empty filter.
func NewFilter() *Filter {
	return &Filter{
		Outage: Outage{tier: "redis", limit: 200 * time.Millisecond},
		marks: &marks{
			byKey:   make(map[string]mark),
			waiting: make(map[string]map[chan struct{}]struct{}),
		},
	}
}

// Join returns another filter with the same marks and an outage of its own, as
// another process has of the same server.
func (f *Filter) Join() *Filter {
	return &Filter{Outage: Outage{tier: "redis", limit: 200 * time.Millisecond}, marks: f.marks}
}

// Flush forgets all marks, as FLUSHALL does.
func (f *Filter) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.byKey)
}

// Marks returns how many marks stand.
func (f *Filter) Marks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for key := range f.byKey {
		if _, stands := f.standing(key); stands {
			n++
		}
	}
	return n
}

// standing returns the mark of a key. The caller holds the mutex.
func (f *Filter) standing(key string) (mark, bool) {
	m, ok := f.byKey[key]
	if ok && !time.Now().Before(m.until) {
		delete(f.byKey, key)
		return mark{}, false
	}
	return m, ok
}

func (f *Filter) plant(key string, m driver.Mark) driver.MarkState {
	f.byKey[key] = mark{Mark: m, until: time.Now().Add(m.TTL)}
	return driver.MarkState{Ours: true}
}

// write plants m where may allows it, given what stands.
func (f *Filter) write(ctx context.Context, op, key string, m driver.Mark, may func(now mark, stands bool) bool) (driver.MarkState, error) {
	if err := f.enter(ctx, op); err != nil {
		return driver.MarkState{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now, stands := f.standing(key)
	if may(now, stands) {
		state := f.plant(key, m)
		if err := f.lost(op); err != nil {
			time.AfterFunc(undoAfter, func() { _ = f.Clear(context.Background(), key, m.Token, false) })
			return driver.MarkState{}, err
		}
		return state, nil
	}
	if !stands {
		return driver.MarkState{}, nil
	}
	return driver.MarkState{Other: now.Token, Flagged: now.Flagged, Left: time.Until(now.until)}, nil
}

// Mark implements driver.Filter.
func (f *Filter) Mark(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	return f.write(ctx, "mark", key, m, func(now mark, stands bool) bool { return !stands || now.Token == m.Token })
}

// Extend implements driver.Filter.
func (f *Filter) Extend(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	return f.write(ctx, "extend", key, m, func(now mark, stands bool) bool { return stands && now.Token == m.Token })
}

// Overwrite implements driver.Filter.
func (f *Filter) Overwrite(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	return f.write(ctx, "overwrite", key, m, func(now mark, stands bool) bool {
		return !stands || now.Token == m.Token || !now.Flagged
	})
}

// Refresh implements driver.Filter.
func (f *Filter) Refresh(ctx context.Context, marks []driver.KeyMark) ([]driver.MarkState, error) {
	states := make([]driver.MarkState, len(marks))
	for i, km := range marks {
		var err error
		if states[i], err = f.Mark(ctx, km.Key, km.Mark); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// Clear implements driver.Filter.
func (f *Filter) Clear(ctx context.Context, key string, token driver.Token, wake bool) error {
	if err := f.enter(ctx, "clear"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, stands := f.standing(key); stands && now.Token == token {
		delete(f.byKey, key)
	}
	if wake {
		for c := range f.waiting[key] {
			signal(c)
		}
	}
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wakeups implements driver.Filter.
func (f *Filter) Wakeups(key string) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	c <- struct{}{} // subscribed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[key] == nil {
		f.waiting[key] = make(map[chan struct{}]struct{})
	}
	f.waiting[key][c] = struct{}{}
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting[key], c)
		if len(f.waiting[key]) == 0 {
			delete(f.waiting, key)
		}
	}
}

// Check implements driver.Filter.
func (f *Filter) Check(ctx context.Context) error { return f.enter(ctx, "check") }

// Close implements driver.Filter; the filter stays usable for other lockers.
func (f *Filter) Close(context.Context) error { return nil }
