// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// shelf is the stock of a hot product in pieces. Only the lock keeps the workers
// apart: two in one piece sell the same twice, and the race detector watches.
type shelf struct {
	keys  []string
	stock map[string]*int
}

func newShelf(keys []string, each int) *shelf {
	s := &shelf{keys: keys, stock: make(map[string]*int)}
	for _, key := range keys {
		n := each
		s.stock[key] = &n
	}
	return s
}

// sell sells until every piece is empty, and returns what was sold, and how fast.
func (s *shelf) sell(t *testing.T, l *tier.Locker, workers int) (sold int64, perSecond float64) {
	t.Helper()
	var count atomic.Int64
	var crew sync.WaitGroup
	start := time.Now()
	for range workers {
		crew.Go(func() {
			left := s.keys // pieces that this worker has not seen empty
			for len(left) > 0 {
				lease, err := l.AcquireAny(t.Context(), left...)
				if errors.Is(err, tier.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				stock := s.stock[lease.Key()]
				switch before := *stock; {
				case before < 0:
					t.Errorf("%q has %d pieces", lease.Key(), before)
				case before == 0:
					left = without(left, lease.Key())
				default:
					time.Sleep(sale)
					*stock = before - 1
					count.Add(1)
				}
				if err := lease.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	crew.Wait()
	return count.Load(), float64(count.Load()) / time.Since(start).Seconds()
}

func without(keys []string, gone string) []string {
	var left []string
	for _, key := range keys {
		if key != gone {
			left = append(left, key)
		}
	}
	return left
}

// A hot product in sixteen pieces sells at least five times as fast as in one,
// never more than there is, and is sold out only when every piece is.
func TestSegments_sell(t *testing.T) {
	const pieces = 16
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		rounds, each := 1, 20
		if soak {
			rounds, each = 5, fullStock
		}
		l := openSegments(t, s)
		defer func() {
			if err := closeNode(l); err != nil {
				t.Error(err)
			}
		}()
		var slow, fast float64
		for range rounds { // in turn, and the best of each: a busy machine only takes away
			one := newShelf([]string{"hot"}, each*2)
			split := newShelf(tier.Segments("split", pieces), each)
			soldOne, perSecond := one.sell(t, l, 64)
			slow = max(slow, perSecond)
			soldSplit, perSecond := split.sell(t, l, 64)
			fast = max(fast, perSecond)
			if soldOne != int64(each*2) || soldSplit != int64(each*pieces) {
				t.Errorf("sold %d of %d, and %d of %d", soldOne, each*2, soldSplit, each*pieces)
			}
		}
		t.Logf("one key: %.0f a second; %d pieces: %.0f a second, %.1f times", slow, pieces, fast, fast/slow)
		if soak && fast < 5*slow { // a measurement: not where tests share the machine
			t.Errorf("%d pieces sell %.1f times as fast as one, want 5", pieces, fast/slow)
		}
	})
}

// openSegments opens the tiers without a proxy: its time would be measured too.
func openSegments(t *testing.T, s *tiers.Tiers) *tier.Locker {
	t.Helper()
	filter, err := redisfast.Open(s.Redis.URL(), redisfast.WithPrefix(s.Prefix))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := mysqlauth.Open(s.Database.DSN(), mysqlauth.WithSweepInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tier.New(filter, authority, tier.WithNamespace(soakNamespace), tier.WithWait(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}
