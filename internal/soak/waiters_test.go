// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// TestWaiters_oneConnection has one process wait for thousands of keys at once:
// it subscribes on one connection, every key is handed over, and no channel is
// left (faults.md G3).
func TestWaiters_oneConnection(t *testing.T) {
	n := 500
	if soak {
		n = 5000
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			w := newWaiting(t, engine)
			holder, waiter := w.locker(t), w.locker(t)
			leases := make([]*tier.Lease, n)
			each(n, func(i int) {
				var err error
				if leases[i], err = holder.Acquire(t.Context(), fmt.Sprintf("k%d", i)); err != nil {
					t.Errorf("acquire: %v", err)
				}
			})
			if t.Failed() {
				return
			}
			var waiting sync.WaitGroup
			waiting.Go(func() {
				each(n, func(i int) {
					lease, err := waiter.Acquire(context.Background(), fmt.Sprintf("k%d", i))
					if err == nil {
						err = release(lease)
					}
					if err != nil {
						t.Errorf("wait: %v", err)
					}
				})
			})
			w.until(t, "all keys are waited for", func() bool { return w.channels(t) == n })
			if conns := w.subscribers(t); conns != 1 {
				t.Errorf("one process waits on %d connections", conns)
			}
			began := time.Now()
			each(n, func(i int) {
				if err := release(leases[i]); err != nil {
					t.Errorf("release: %v", err)
				}
			})
			waiting.Wait()
			t.Logf("%d keys were handed over in %v", n, time.Since(began).Round(time.Millisecond))
			// By then an idle connection has not been closed yet, and its channels
			// with it.
			w.within(t, 3*time.Second, "no channel is left", func() bool { return w.channels(t) == 0 })
			if conns := w.subscribers(t); conns > 1 {
				t.Errorf("%d connections are left", conns)
			}
		})
	}
}

// TestWaiters_lostMessage takes the waiter's subscription away before the
// release, and does not let it come back: what is left is the poll.
func TestWaiters_lostMessage(t *testing.T) {
	rounds := 3
	if soak {
		rounds = 30
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, engine)
			holder := w.locker(t)
			node := w.tiers.NodeWith(t, "")
			waiter := w.compose(t, node)
			var waits []time.Duration
			for range rounds {
				lease, err := holder.Acquire(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				granted := make(chan time.Time, 1)
				go func() {
					next, err := waiter.Acquire(context.Background(), "k")
					granted <- time.Now()
					if err == nil {
						err = release(next)
					}
					if err != nil {
						t.Errorf("wait: %v", err)
					}
					close(granted)
				}()
				w.until(t, "the waiter is subscribed", func() bool { return w.channels(t) == 1 })
				node.ToRedis.OnRequest(func(r stack.Request) stack.Action {
					if strings.EqualFold(r.Verb, "SUBSCRIBE") {
						return stack.HangUp
					}
					return stack.Pass
				})
				if err := w.redis.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
					t.Fatal(err)
				}
				w.until(t, "the subscription is gone", func() bool { return w.channels(t) == 0 })
				released := time.Now()
				if err := release(lease); err != nil {
					t.Fatal(err)
				}
				waits = append(waits, (<-granted).Sub(released).Round(time.Millisecond))
				<-granted
				node.ToRedis.OnRequest(nil)
			}
			t.Logf("handed over without a message after %v", waits)
			if slowest := slices.Max(waits); slowest > pollCap+slack {
				t.Errorf("a lost message cost %v", slowest)
			}
		})
	}
}

// TestWaiters_threeProcesses passes one key between three processes with
// several waiters each. A release costs the server one claim, or at most one of
// each process, and the key goes on at once.
func TestWaiters_threeProcesses(t *testing.T) {
	quick, slow := 60, 3
	if soak {
		quick, slow = 3000, 30
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, engine)
			// Kept so briefly that many wait for the same message.
			p := w.passAround(t, quick, 4, 5*time.Millisecond)
			t.Logf("held 5ms: %s", p)
			p.bounded(t)
			// Kept so long that the polls of those who wait are a second apart, and by
			// processes that do not have the next in line themselves: what comes sooner
			// came by message.
			p = w.passAround(t, slow, 1, 1200*time.Millisecond)
			t.Logf("held 1.2s: %s", p)
			p.bounded(t)
			if m := p.median(); m > 200*time.Millisecond {
				t.Errorf("handed over after %v: as a poll would, not a message", m)
			}
			w.until(t, "no channel is left", func() bool { return w.channels(t) == 0 })
		})
	}
}

// TestWaiters_killed kills a waiting process, also one that is next in line with
// its mark in Redis: it leaves nothing behind, and the others go on.
func TestWaiters_killed(t *testing.T) {
	rounds := 1
	if soak {
		rounds = 15
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, engine)
			holder, other := w.locker(t), w.locker(t)
			for range rounds {
				for _, marked := range []bool{false, true} {
					w.killWaiter(t, holder, other, marked)
				}
			}
			w.until(t, "nothing is left", func() bool {
				return w.channels(t) == 0 && w.tiers.Held(t) == 0
			})
			if n := w.tiers.Marks(t); n > 1 { // the last one killed had one, until its time is up
				t.Errorf("%d marks are left", n)
			}
		})
	}
}

func (w *waiting) killWaiter(t *testing.T, holder, other *tier.Locker, marked bool) {
	t.Helper()
	lease, err := holder.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	victim := w.process(t, 2, time.Millisecond, func(string) {})
	w.until(t, "the victim waits", func() bool { return w.channels(t) == 1 })
	if marked {
		// Redis forgets the holder's mark: the next to ask is next in line.
		w.tiers.Flush(t)
		w.until(t, "the victim has its mark", func() bool { return w.tiers.Marks(t) == 1 })
	}
	victim.kill()
	w.until(t, "the victim's channel is gone", func() bool { return w.channels(t) == 0 })
	granted := make(chan *tier.Lease, 1)
	go func() {
		next, err := other.Acquire(context.Background(), "k")
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		granted <- next
	}()
	w.until(t, "another waits", func() bool { return w.channels(t) == 1 })
	released := time.Now()
	if err := release(lease); err != nil {
		t.Errorf("release: %v", err)
	}
	next := <-granted
	took := time.Since(released).Round(time.Millisecond)
	t.Logf("victim with a mark: %t; the other went on after %v", marked, took)
	if took > pollCap+slack {
		t.Errorf("a killed waiter cost the next %v", took)
	}
	if next == nil {
		return
	}
	if err := release(next); err != nil {
		t.Errorf("release: %v", err)
	}
}

const (
	// pollCap is the longest that who hears nothing waits before asking again;
	// a stale mark is believed for as long (P9).
	pollCap = time.Second
	// slack is for a slow machine.
	slack = time.Second
)

// waiting is what the waiters of a test wait on: a Redis of its own, whose
// subscriptions are the test's.
type waiting struct {
	tiers *tiers.Tiers
	redis *redis.Client
}

func newWaiting(t *testing.T, engine stack.Engine) *waiting {
	t.Helper()
	w := &waiting{tiers: tiers.On(t, stack.StartRedis(t), stack.SharedSQL(t, engine))}
	options, err := redis.ParseURL(w.tiers.Redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	w.redis = redis.NewClient(options)
	t.Cleanup(func() { _ = w.redis.Close() })
	return w
}

// locker is that of another process. Its limits are not what a machine meets on
// which thousands of goroutines ask at once.
func (w *waiting) locker(t *testing.T) *tier.Locker {
	t.Helper()
	filter, err := redisfast.Open(w.tiers.Redis.URL(), redisfast.WithPrefix(w.tiers.Prefix), redisfast.WithTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := mysqlauth.Open(w.tiers.Database.DSN(), mysqlauth.WithSweepInterval(0), mysqlauth.WithTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return w.compose(t, tiers.Node{Filter: filter, Authority: authority})
}

func (w *waiting) compose(t *testing.T, node tiers.Node) *tier.Locker {
	t.Helper()
	locker, err := tier.New(node.Filter, node.Authority, tier.WithNamespace("waiters"), tier.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLocker(t, locker) })
	return locker
}

// channels counts the keys that somebody is subscribed to.
func (w *waiting) channels(t *testing.T) int {
	t.Helper()
	names, err := w.redis.PubSubChannels(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// subscribers counts the connections with subscriptions.
func (w *waiting) subscribers(t *testing.T) int {
	t.Helper()
	list, err := w.redis.Do(context.Background(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}

func (w *waiting) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	w.within(t, time.Minute, what, done)
}

func (w *waiting) within(t *testing.T, d time.Duration, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(d); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// each calls f for all numbers below n at once.
func each(n int, f func(i int)) {
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { f(i) })
	}
	running.Wait()
}

// release gives a lease back; where a second was too short for the answer, it
// goes on behind.
func release(lease *tier.Lease) error {
	if err := lease.Release(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// passed is how a key went from hand to hand.
type passed struct {
	mu     sync.Mutex
	turns  []turnAt
	claims []int64 // of each process that has ended
}

type turnAt struct {
	fence      uint64
	from, till time.Time
}

// passAround has processes take turns until there were that many.
func (w *waiting) passAround(t *testing.T, turns, waiters int, hold time.Duration) *passed {
	t.Helper()
	p := &passed{}
	var processes []*process
	for range 3 {
		processes = append(processes, w.process(t, waiters, hold, func(line string) {
			if !p.note(line) {
				t.Errorf("waiter: %s", line)
			}
		}))
	}
	w.until(t, "the key goes around", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.turns) >= turns
	})
	each(len(processes), func(i int) {
		if err := processes[i].end(); err != nil {
			t.Errorf("a waiter ended with %v", err)
		}
	})
	slices.SortFunc(p.turns, func(a, b turnAt) int { return a.from.Compare(b.from) })
	return p
}

// note takes a line of a process.
func (p *passed) note(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var fence uint64
	var from, till, claims int64
	if n, _ := fmt.Sscanf(line, "turn %d %d %d", &fence, &from, &till); n == 3 {
		p.turns = append(p.turns, turnAt{fence, time.Unix(0, from), time.Unix(0, till)})
		return true
	}
	if n, _ := fmt.Sscanf(line, "claims %d", &claims); n == 1 {
		p.claims = append(p.claims, claims)
		return true
	}
	return false
}

// bounded holds the processes to one claim each for every hand-over.
func (p *passed) bounded(t *testing.T) {
	t.Helper()
	if len(p.claims) != 3 {
		t.Errorf("%d processes told their claims", len(p.claims))
	}
	for _, claims := range p.claims {
		if claims > int64(len(p.turns))+1 {
			t.Errorf("a process claimed %d times in %d hand-overs", claims, len(p.turns))
		}
	}
	for i := 1; i < len(p.turns); i++ {
		if p.turns[i].fence <= p.turns[i-1].fence {
			t.Errorf("fence %d after %d", p.turns[i].fence, p.turns[i-1].fence)
		}
	}
}

func (p *passed) gaps() []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(p.turns); i++ {
		gaps = append(gaps, p.turns[i].from.Sub(p.turns[i-1].till))
	}
	slices.Sort(gaps)
	return gaps
}

func (p *passed) median() time.Duration { return p.gaps()[(len(p.turns)-1)/2] }

func (p *passed) String() string {
	total := int64(0)
	for _, claims := range p.claims {
		total += claims
	}
	gaps := p.gaps()
	return fmt.Sprintf("%d turns, %d claims (%v), handed over after %v in the median, %v at most", len(p.turns), total, p.claims,
		p.median().Round(10*time.Microsecond), gaps[len(gaps)-1].Round(10*time.Microsecond))
}

// process starts another process with waiters for the one key.
func (w *waiting) process(t *testing.T, waiters int, hold time.Duration, each func(line string)) *process {
	t.Helper()
	return startProcess(t, "waiters", map[string]string{
		"redis": w.tiers.Redis.URL(), "prefix": w.tiers.Prefix, "dsn": w.tiers.Database.DSN(),
		"hold": hold.String(), "waiters": strconv.Itoa(waiters),
	}, each)
}

func init() { roles["waiters"] = runWaiters }

// countingAuthority counts the claims that reach the server.
type countingAuthority struct {
	driver.Authority
	claims atomic.Int64
}

func (a *countingAuthority) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	a.claims.Add(1)
	return a.Authority.Claim(ctx, c)
}

// runWaiters is the process: a few goroutines that take turns with the key.
func runWaiters() int {
	filter, err := redisfast.Open(setting("redis"), redisfast.WithPrefix(setting("prefix")), redisfast.WithTimeout(time.Second))
	if err != nil {
		return wrong(err)
	}
	inner, err := mysqlauth.Open(setting("dsn"), mysqlauth.WithSweepInterval(0), mysqlauth.WithTimeout(5*time.Second))
	if err != nil {
		return wrong(err)
	}
	hold, err := time.ParseDuration(setting("hold"))
	if err != nil {
		return wrong(err)
	}
	waiters, err := strconv.Atoi(setting("waiters"))
	if err != nil {
		return wrong(err)
	}
	authority := &countingAuthority{Authority: inner}
	locker, err := tier.New(filter, authority, tier.WithNamespace("waiters"), tier.WithWait(time.Minute))
	if err != nil {
		return wrong(err)
	}
	ctx, stop := untilAsked()
	defer stop()
	each(waiters, func(int) {
		for ctx.Err() == nil {
			lease, err := locker.Acquire(ctx, "k")
			if ctx.Err() != nil && err != nil {
				return
			}
			if err != nil {
				wrong(err)
				return
			}
			from := time.Now()
			time.Sleep(hold)
			till := time.Now()
			if err := release(lease); err != nil {
				wrong(err)
			}
			say("turn %d %d %d", lease.Fence(), from.UnixNano(), till.UnixNano())
			if waiters == 1 {
				time.Sleep(hold / 2) // stand back: who has just released would be the first to ask
			}
		}
	})
	say("claims %d", authority.claims.Load())
	closing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := locker.Close(closing); err != nil {
		return wrong(err)
	}
	return 0
}
