// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// rig is a locker on in-memory drivers whose calls a test can watch, hold up
// and fail.
type rig struct {
	*tier.Locker
	filter    *tiertest.Filter
	authority *tiertest.Authority
	calls     *calls
	log       *observer.ObservedLogs
}

const namespace = "rig"

func newRig(t *testing.T, options ...tier.Option) *rig {
	t.Helper()
	return newRigOn(t, tiertest.NewFilter(), tiertest.NewAuthority(), options...)
}

// peer is another process on the same servers.
func (r *rig) peer(t *testing.T, options ...tier.Option) *rig {
	t.Helper()
	return newRigOn(t, r.filter.Join(), r.authority.Join(), options...)
}

func newRigOn(t *testing.T, f *tiertest.Filter, a *tiertest.Authority, options ...tier.Option) *rig {
	t.Helper()
	r := newOpenRig(t, f, a, options...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// newOpenRig leaves Close to the test.
func newOpenRig(t *testing.T, f *tiertest.Filter, a *tiertest.Authority, options ...tier.Option) *rig {
	t.Helper()
	core, log := observer.New(zapcore.DebugLevel)
	r := &rig{filter: f, authority: a, calls: &calls{seen: make(map[string]int)}, log: log}
	options = append([]tier.Option{tier.WithNamespace(namespace), tier.WithLogger(zap.New(core))}, options...)
	l, err := tier.New(watchedFilter{f, r.calls}, watchedAuthority{a, r.calls}, options...)
	if err != nil {
		t.Fatal(err)
	}
	r.Locker = l
	return r
}

func (r *rig) must(t *testing.T, key string, options ...tier.AcquireOption) *tier.Lease {
	t.Helper()
	lease, err := r.Acquire(t.Context(), key, options...)
	if err != nil {
		t.Fatalf("acquire %q: %v", key, err)
	}
	return lease
}

// clean checks that nothing is left on the servers.
func (r *rig) clean(t *testing.T) {
	t.Helper()
	if n := r.authority.Held(); n != 0 {
		t.Errorf("%d rows are held", n)
	}
	if n := r.filter.Marks(); n != 0 {
		t.Errorf("%d marks stand", n)
	}
}

// row is what the authority has for a key.
func (r *rig) row(t *testing.T, key string) driver.Row {
	t.Helper()
	row, err := r.authority.Join().Look(context.Background(), namespace+"/"+key)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// call is one call of a driver: the n-th of its op, counted from 1.
type call struct {
	op   string
	n    int
	keys []string
}

// hook may block, which holds the call up. An error ends the call.
type hook func(ctx context.Context, c call) error

// calls sees every call of a locker to its drivers.
type calls struct {
	mu            sync.Mutex
	seen          map[string]int
	before, after hook
}

// on sets what happens before a call is carried out, and between that and its
// answer. Either may be nil.
func (c *calls) on(before, after hook) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.after = before, after
}

func (c *calls) count(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[op]
}

func (c *calls) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, seen := range c.seen {
		n += seen
	}
	return n
}

// watch runs do between the hooks.
func (c *calls) watch(ctx context.Context, op string, keys []string, do func() error) (carriedOut bool, err error) {
	c.mu.Lock()
	c.seen[op]++
	this := call{op: op, n: c.seen[op], keys: keys}
	before, after := c.before, c.after
	c.mu.Unlock()
	if before != nil {
		if err := before(ctx, this); err != nil {
			return false, err
		}
	}
	if err := do(); err != nil {
		return false, err
	}
	if after != nil {
		return true, after(ctx, this)
	}
	return true, nil
}

// onOp is a hook for one op, or for all where op is "".
func onOp(op string, h hook) hook {
	return func(ctx context.Context, c call) error {
		if op != "" && c.op != op {
			return nil
		}
		return h(ctx, c)
	}
}

// firstN fails the first n calls.
func firstN(n int, class driver.Class) hook {
	return func(_ context.Context, c call) error {
		if c.n > n {
			return nil
		}
		return fault(c.op, class)
	}
}

func fault(op string, class driver.Class) error {
	return &driver.Error{Tier: "test", Op: op, Class: class, Err: errors.New("injected")}
}

// undoAfter is how soon a driver undoes what a failed call did.
const undoAfter = 200 * time.Millisecond

// watchedFilter is the filter of a rig. It keeps the contract that a failed
// call leaves nothing.
type watchedFilter struct {
	*tiertest.Filter
	calls *calls
}

func (f watchedFilter) undo(key string, token driver.Token) {
	time.AfterFunc(undoAfter, func() { _ = f.Filter.Join().Clear(context.Background(), key, token, false) })
}

func (f watchedFilter) state(ctx context.Context, op, key string, m driver.Mark,
	do func(context.Context, string, driver.Mark) (driver.MarkState, error),
) (state driver.MarkState, err error) {
	carriedOut, err := f.calls.watch(ctx, op, []string{key}, func() (err error) {
		state, err = do(ctx, key, m)
		return err
	})
	if err != nil {
		if carriedOut && op == "mark" {
			f.undo(key, m.Token)
		}
		return driver.MarkState{}, err
	}
	return state, nil
}

func (f watchedFilter) Mark(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	return f.state(ctx, "mark", key, m, f.Filter.Mark)
}

func (f watchedFilter) Extend(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	return f.state(ctx, "extend", key, m, f.Filter.Extend)
}

func (f watchedFilter) Overwrite(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	return f.state(ctx, "overwrite", key, m, f.Filter.Overwrite)
}

func (f watchedFilter) Refresh(ctx context.Context, marks []driver.KeyMark) (states []driver.MarkState, err error) {
	keys := make([]string, len(marks))
	for i, m := range marks {
		keys[i] = m.Key
	}
	_, err = f.calls.watch(ctx, "refresh", keys, func() (err error) {
		states, err = f.Filter.Refresh(ctx, marks)
		return err
	})
	if err != nil {
		return nil, err
	}
	return states, nil
}

func (f watchedFilter) Clear(ctx context.Context, key string, token driver.Token, wake bool) error {
	_, err := f.calls.watch(ctx, "clear", []string{key}, func() error { return f.Filter.Clear(ctx, key, token, wake) })
	if err != nil {
		f.undo(key, token)
	}
	return err
}

func (f watchedFilter) Wakeups(key string) (c <-chan struct{}, stop func()) {
	_, _ = f.calls.watch(context.Background(), "wakeups", []string{key}, func() error {
		c, stop = f.Filter.Wakeups(key)
		return nil
	})
	return c, stop
}

func (f watchedFilter) Check(ctx context.Context) error {
	_, err := f.calls.watch(ctx, "checkFilter", nil, func() error { return f.Filter.Check(ctx) })
	return err
}

// watchedAuthority is the authority of a rig, with the same contract.
type watchedAuthority struct {
	*tiertest.Authority
	calls *calls
}

func (a watchedAuthority) Claim(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	carriedOut, err := a.calls.watch(ctx, "claim", []string{c.Key}, func() (err error) {
		grant, err = a.Authority.Claim(ctx, c)
		return err
	})
	if err != nil {
		if carriedOut {
			r := driver.Release{Key: c.Key, Token: grant.Token}
			time.AfterFunc(undoAfter, func() { _ = a.Authority.Join().Release(context.Background(), r) })
		}
		return driver.Grant{}, err
	}
	return grant, nil
}

func (a watchedAuthority) Look(ctx context.Context, key string) (row driver.Row, err error) {
	_, err = a.calls.watch(ctx, "look", []string{key}, func() (err error) {
		row, err = a.Authority.Look(ctx, key)
		return err
	})
	if err != nil {
		return driver.Row{}, err
	}
	return row, nil
}

func (a watchedAuthority) Renew(ctx context.Context, rs []driver.Renewal) (answers []driver.Renewed) {
	keys := make([]string, len(rs))
	for i, r := range rs {
		keys[i] = r.Key
	}
	_, err := a.calls.watch(ctx, "renew", keys, func() error {
		answers = a.Authority.Renew(ctx, rs)
		return nil
	})
	if err != nil {
		answers = make([]driver.Renewed, len(rs))
		for i := range answers {
			answers[i].Err = err
		}
	}
	return answers
}

func (a watchedAuthority) Release(ctx context.Context, r driver.Release) error {
	_, err := a.calls.watch(ctx, "release", []string{r.Key}, func() error { return a.Authority.Release(ctx, r) })
	return err
}

func (a watchedAuthority) Check(ctx context.Context) error {
	_, err := a.calls.watch(ctx, "check", nil, func() error { return a.Authority.Check(ctx) })
	return err
}
