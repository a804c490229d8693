// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

const (
	soakNamespace = "soak"
	nodeTimeout   = 250 * time.Millisecond // of a statement
)

// onBothEngines runs a test on both, one after the other: it is about load.
func onBothEngines(t *testing.T, test func(t *testing.T, s *tiers.Tiers)) {
	t.Helper()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) { test(t, tiers.New(t, engine)) })
	}
}

// nodeSettings are what openNode needs, with more of the role's own.
func nodeSettings(s *tiers.Tiers, node int, more map[string]string) map[string]string {
	all := map[string]string{
		"redis": s.Redis.URL(), "prefix": s.Prefix, "node": strconv.Itoa(node),
		"dsn": tiers.WithParameters(s.Database.DSN(), tiers.Dialects(s.Database.Server().Engine())[node%4]),
	}
	for name, value := range more {
		all[name] = value
	}
	return all
}

// openNode opens the tiers in a process of a test.
func openNode(options ...tier.Option) (*tier.Locker, *mysqlauth.Authority, error) {
	filter, err := redisfast.Open(setting("redis"), redisfast.WithPrefix(setting("prefix")))
	if err != nil {
		return nil, nil, err
	}
	authority, err := mysqlauth.Open(setting("dsn"), mysqlauth.WithSweepInterval(0), mysqlauth.WithTimeout(nodeTimeout))
	if err != nil {
		return nil, nil, err
	}
	l, err := tier.New(filter, authority, append([]tier.Option{
		tier.WithNamespace(soakNamespace), tier.WithHolder(nodeName()),
	}, options...)...)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return l, authority, l.Check(ctx)
}

// nodeName is the holder of everything a process holds.
func nodeName() string { return fmt.Sprintf("node %s/%d", setting("node"), os.Getpid()) }

// nodeRand draws differently in every process and worker, and again the same
// for the same seed.
func nodeRand(worker int) *rand.Rand {
	seed, _ := strconv.ParseUint(setting("seed"), 10, 64)
	node, _ := strconv.ParseUint(setting("node"), 10, 64)
	return rand.New(rand.NewPCG(seed, node<<16|uint64(worker)))
}

// instant is a reading of CLOCK_MONOTONIC, which all processes share.
type instant int64

func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return instant(ts.Nano())
}

// span is one tenure as its holder saw it.
type span struct {
	key         string
	fence       uint64
	from, until instant
}

// saySpan tells the test of a tenure that ended at the moment given, or at its
// deadline when that came first.
func saySpan(lease *tier.Lease, from, until instant) {
	left := time.Until(lease.Deadline())
	until = min(until, now()+instant(left))
	say("span %s %d %d %d", lease.Key(), lease.Fence(), from, until)
}

// spans collects what processes say of their tenures, and what went wrong.
type spans struct {
	mu    sync.Mutex
	byKey map[string][]span
	said  map[string]int
	wrong []string
}

func newSpans() *spans { return &spans{byKey: make(map[string][]span), said: make(map[string]int)} }

// hear takes a line of a process.
func (s *spans) hear(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, rest, _ := strings.Cut(line, " ")
	s.said[kind]++
	switch kind {
	case "span":
		var one span
		if _, err := fmt.Sscanf(rest, "%s %d %d %d", &one.key, &one.fence, &one.from, &one.until); err != nil {
			s.wrong = append(s.wrong, line)
			return
		}
		s.byKey[one.key] = append(s.byKey[one.key], one)
	case "wrong":
		s.wrong = append(s.wrong, rest)
	}
}

// check fails the test for tenures of a key that overlap, for fences that do not
// rise with them (P1, P2, P4), and for whatever a process found wrong.
func (s *spans) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.wrong {
		if i == 5 {
			t.Errorf("and %d more", len(s.wrong)-i)
			break
		}
		t.Errorf("a process says: %s", w)
	}
	for key, all := range s.byKey {
		slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		for i := 1; i < len(all); i++ {
			before, this := all[i-1], all[i]
			if this.from < before.until {
				t.Errorf("%s: fence %d was granted %v before the tenure of fence %d was over",
					key, this.fence, time.Duration(before.until-this.from), before.fence)
			}
			if this.fence <= before.fence {
				t.Errorf("%s: fence %d came after fence %d", key, this.fence, before.fence)
			}
		}
	}
	t.Logf("said: %v", s.said)
}

// checkIdle, after check, fails the test when a key that was always wanted had no holder for
// longer than a limit.
func (s *spans) checkIdle(t *testing.T, limit time.Duration) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var longest time.Duration
	for key, all := range s.byKey {
		for i := 1; i < len(all); i++ {
			idle := time.Duration(all[i].from - all[i-1].until)
			longest = max(longest, idle)
			if idle > limit {
				t.Errorf("%s: nobody had it for %v", key, idle)
			}
		}
	}
	t.Logf("no key was without a holder for more than %v", longest)
}

// closeNode ends what a process opened.
func closeNode(l *tier.Locker) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return l.Close(ctx)
}
