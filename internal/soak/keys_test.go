// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// TestKeys_manyDistinct passes ten million keys through one process, on drivers
// in memory that keep nothing of a key nobody holds (faults.md F5): neither the
// heap nor the goroutines grow with them, and what is held all along stays.
func TestKeys_manyDistinct(t *testing.T) {
	n, ttl := 100_000, 3*time.Second // of which a third passes in any run
	if soak {
		n, ttl = 10_000_000, 10*time.Second
	}
	authority := newForgetful()
	filter := tiertest.NewFilter()
	locker, err := tier.New(filter, authority, tier.WithNamespace("keys"), tier.WithTTL(ttl), tier.WithMaxHold(0))
	if err != nil {
		t.Fatal(err)
	}
	other, err := tier.New(filter.Join(), authority, tier.WithNamespace("keys"), tier.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer closeLocker(t, other)
	defer closeLocker(t, locker)
	k := &keyRun{
		locker: locker, other: other, most: n,
		planter: filter.Join(),
	}
	k.run(t, 100)
	if authority.renewals.Load() < 100 {
		t.Errorf("%d renewals of what was held", authority.renewals.Load())
	}
}

// TestKeys_manyDistinct_realTiers is the same, with fewer keys, on the real
// drivers: what they keep of a key goes away with it as well.
func TestKeys_manyDistinct_realTiers(t *testing.T) {
	n := 4000
	if soak {
		n = 200_000
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			s := tiers.New(t, engine)
			var lockers []*tier.Locker
			for range 2 {
				node := s.NodeWith(t, "")
				locker, err := tier.New(node.Filter, node.Authority, tier.WithNamespace("keys"), tier.WithTTL(3*time.Second), tier.WithMaxHold(0))
				if err != nil {
					t.Fatal(err)
				}
				lockers = append(lockers, locker)
				defer closeLocker(t, locker)
			}
			planter := s.NodeWith(t, "")
			defer func() {
				if err := errors.Join(planter.Filter.Close(context.Background()), planter.Authority.Close(context.Background())); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			k := &keyRun{
				locker: lockers[0], other: lockers[1], most: n,
				planter: planter.Filter,
			}
			k.run(t, 100)
		})
	}
}

// keyRun passes keys through a locker, each once.
type keyRun struct {
	locker, other *tier.Locker // other is another process
	planter       driver.Filter
	most          int

	next, refused, given atomic.Int64
}

const (
	keyWorkers = 64
	// heapSlack is less than 30 bytes for each of the 90,000 keys between the
	// two looks at the heap of the scaled run.
	heapSlack = 5 << 19
)

// descriptors makes more goroutines than the run will ever have at once. The
// runtime keeps half a kilobyte of each for the next one, and the highest number
// so far depends on the machine, not on the keys.
func descriptors() {
	var all sync.WaitGroup
	for range 20_000 {
		all.Go(func() { time.Sleep(100 * time.Millisecond) })
	}
	all.Wait()
}

func (k *keyRun) run(t *testing.T, held int) {
	t.Helper()
	var leases []*tier.Lease
	for i := range held {
		lease, err := k.locker.Acquire(t.Context(), fmt.Sprintf("held-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	descriptors()
	began := time.Now()
	k.pass(t, k.most/10)
	heapBefore, goroutinesBefore := settled()
	k.pass(t, k.most)
	heapAfter, goroutinesAfter := settled()
	t.Logf("%d keys in %v, %d refused, %d given up: heap %d KiB after a tenth, %d KiB after all; goroutines %d, %d",
		k.most, time.Since(began).Round(time.Millisecond), k.refused.Load(), k.given.Load(),
		heapBefore>>10, heapAfter>>10, goroutinesBefore, goroutinesAfter)
	if heapAfter > heapBefore+heapSlack {
		t.Errorf("the heap grew by %d KiB with the number of keys", (heapAfter-heapBefore)>>10)
	}
	if goroutinesAfter > goroutinesBefore+20 {
		t.Errorf("goroutines went from %d to %d with the number of keys", goroutinesBefore, goroutinesAfter)
	}
	if k.refused.Load() == 0 || k.given.Load() == 0 {
		t.Error("the run did not do what it is for")
	}
	for _, lease := range leases {
		again, err := k.locker.Acquire(lease.Context(), lease.Key())
		switch {
		case err != nil:
			t.Errorf("%s was held all along: %v", lease.Key(), err)
		case again.Fence() != lease.Fence():
			t.Errorf("%s was entered again with fence %d, not %d", lease.Key(), again.Fence(), lease.Fence())
		}
		if err == nil {
			err = again.Release(t.Context())
		}
		err = errors.Join(err, lease.Err(), lease.Verify(t.Context()))
		if _, stolen := k.other.TryAcquire(t.Context(), lease.Key()); !errors.Is(stolen, tier.ErrHeld) {
			t.Errorf("%s is held, and another was told %v", lease.Key(), stolen)
		}
		if err = errors.Join(err, lease.Release(t.Context())); err != nil {
			t.Errorf("%s was held all along: %v", lease.Key(), err)
		}
	}
}

// pass works until that many keys have gone through.
func (k *keyRun) pass(t *testing.T, upTo int) {
	var running sync.WaitGroup
	for range keyWorkers {
		running.Go(func() {
			for {
				n := k.next.Add(1)
				if n > int64(upTo) {
					return
				}
				if err := k.once(int(n)); err != nil {
					t.Errorf("key %d: %v", n, err)
				}
			}
		})
	}
	running.Wait()
	k.next.Store(int64(upTo))
}

// plant puts a foreign mark before a key, which is not to be a memory of the
// filter's afterwards.
func (k *keyRun) plant(key string) (unplant func(), err error) {
	mark := driver.Mark{Token: driver.NewToken(), TTL: time.Minute}
	_, err = k.planter.Mark(context.Background(), "keys/"+key, mark)
	return func() { _ = k.planter.Clear(context.Background(), "keys/"+key, mark.Token, false) }, err
}

// once takes a key through one of the ways that leave something to remember.
func (k *keyRun) once(n int) error {
	key := fmt.Sprintf("key-%d", n)
	ctx := context.Background()
	switch {
	case n%500 == 1: // a foreign mark stands in the way
		unplant, err := k.plant(key)
		if err != nil {
			return err
		}
		defer unplant()
		lease, err := k.locker.TryAcquire(ctx, key)
		if err == nil && lease.Level() == tier.LevelAuthority { // Redis had no time to answer
			return lease.Release(context.Background())
		}
		if !errors.Is(err, tier.ErrHeld) {
			return fmt.Errorf("a foreign mark stood, and the answer was %v, %w", lease, err)
		}
		k.refused.Add(1)
		return nil
	case n%500 == 2: // and is waited for, until the caller has no more patience
		unplant, err := k.plant(key)
		if err != nil {
			return err
		}
		defer unplant()
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if lease, err := k.locker.Acquire(ctx, key); err == nil {
			return lease.Release(context.Background())
		}
		k.given.Add(1)
		return nil
	case n%50 == 3: // the caller leaves somewhere on the way
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Duration(n%1000)*time.Microsecond, cancel)
		lease, err := k.locker.Acquire(ctx, key)
		if err == nil {
			return lease.Release(context.Background())
		}
		k.given.Add(1)
		return nil
	}
	lease, err := k.locker.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// settled returns the heap in use and the goroutines, once what goes on behind
// the callers has come to rest.
func settled() (heap, goroutines int) {
	var m runtime.MemStats
	least := 0
	for range 20 {
		time.Sleep(50 * time.Millisecond)
		n := runtime.NumGoroutine()
		runtime.GC()
		runtime.ReadMemStats(&m)
		if now := int(m.HeapAlloc); least == 0 || now < least {
			least = now
		}
		goroutines = n
	}
	return least, goroutines
}

// forgetful is a driver.Authority in memory that keeps nothing of a key nobody
// holds. Its fences come from one counter.
type forgetful struct {
	*tiertest.Authority // for what the contract asks besides; it sees no key

	fence, renewals atomic.Int64

	mu   sync.Mutex
	held map[string]driver.Row
}

var _ driver.Authority = (*forgetful)(nil)

func newForgetful() *forgetful {
	return &forgetful{Authority: tiertest.NewAuthority(), held: make(map[string]driver.Row)}
}

func (f *forgetful) Claim(_ context.Context, c driver.Claim) (driver.Grant, error) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if row, ok := f.held[c.Key]; ok && now.Before(row.Until) {
		return driver.Grant{}, &driver.Refusal{Left: row.Until.Sub(now), Holder: row.Holder}
	}
	row := driver.Row{Held: true, Token: driver.NewToken(), Fence: uint64(f.fence.Add(1)), Holder: c.Holder, Until: now.Add(c.TTL)}
	f.held[c.Key] = row
	return driver.Grant{Token: row.Token, Fence: row.Fence, Until: row.Until}, nil
}

func (f *forgetful) Look(_ context.Context, key string) (driver.Row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	row, ok := f.held[key]
	if ok {
		row.Left = time.Until(row.Until)
		row.Held = row.Left > 0
	}
	return row, nil
}

// ours is nil when the token holds the key. The caller holds the mutex.
func (f *forgetful) ours(key string, token driver.Token) error {
	row, ok := f.held[key]
	switch {
	case !ok:
		return &driver.Loss{Reason: driver.LossFreed}
	case row.Token != token:
		return &driver.Loss{Reason: driver.LossTaken, Fence: row.Fence}
	case !time.Now().Before(row.Until):
		return &driver.Loss{Reason: driver.LossExpired, Fence: row.Fence}
	}
	return nil
}

func (f *forgetful) Renew(_ context.Context, rs []driver.Renewal) []driver.Renewed {
	f.mu.Lock()
	defer f.mu.Unlock()
	answers := make([]driver.Renewed, len(rs))
	for i, r := range rs {
		if answers[i].Err = f.ours(r.Key, r.Token); answers[i].Err != nil {
			continue
		}
		f.renewals.Add(1)
		row := f.held[r.Key]
		row.Until = time.Now().Add(r.TTL)
		f.held[r.Key] = row
		answers[i].Until = row.Until
	}
	return answers
}

func (f *forgetful) Release(_ context.Context, r driver.Release) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ours(r.Key, r.Token); err != nil {
		return err
	}
	delete(f.held, r.Key)
	return nil
}
