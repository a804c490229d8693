// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// stage is how far an acquire has come.
type stage int32

const (
	beforeRedis stage = iota // the mark has not been answered
	afterRedis               // the mark stands
	afterSent                // the claim is on its way
	afterCommit              // the claim is granted, its reply on the way back
	stages
)

func (s stage) String() string {
	return [...]string{"before Redis", "after Redis OK", "after MySQL sent", "after MySQL commit"}[s]
}

// TestAcquire_cancelled_B1_B4_J7 cancels thousands of acquires at instants
// spread over the time an acquire takes, and as many at a chosen stage: nothing
// is left of any, and another process gets each key without waiting for a TTL.
func TestAcquire_cancelled_B1_B4_J7(t *testing.T) {
	// Of each, a part is cancelled by the clock and a part in each stage.
	total, perStage := 2000, 200
	if soak {
		total, perStage = 10_000, 1000
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			c := newCancels(t, engine)
			p99 := c.warmUp(t)
			base := c.usage(t)
			t.Logf("p99 of an acquire: %v; at rest: %v", p99, base)

			began := time.Now()
			c.run(t, total, perStage)
			took := time.Since(began)

			time.Sleep(2 * time.Second)
			if n := c.tiers.Held(t); n != 0 {
				t.Errorf("%d rows held", n)
			}
			if n := c.tiers.Marks(t); n != 0 {
				t.Errorf("%d marks in Redis", n)
			}
			if after := c.usage(t); after.inUse != 0 || after.goroutines > base.goroutines || after.threads > base.threads {
				t.Errorf("at rest again: %v, before: %v\n%s", after, base, after.dump)
			}
			c.report(t, total, perStage, took)
			c.askLater(t)
		})
	}
}

// cancels is a locker that is watched on its way to both servers, and a locker
// of another process.
type cancels struct {
	*tier.Locker
	peer  *tier.Locker
	tiers *tiers.Tiers
	pools []*sql.DB
	keys  atomic.Int64
	free  atomic.Int64
	under sync.Map // key -> *underWay

	mu      sync.Mutex
	counts  [stages]int            // cancelled, by the stage reached
	early   int                    // granted before the clock cancelled them
	unknown int                    // releases without an answer within their second
	later   []string               // keys that nobody has asked for since
	slowest map[bool]time.Duration // of the successors, by whether the key was new

	// What an acquire takes that nobody cancels, meanwhile.
	ordinary    []time.Duration
	median, p99 time.Duration // of the last ones
	slowestOf   time.Duration // of all
}

// underWay is one acquire.
type underWay struct {
	stage    atomic.Int32
	force    stage // cancel there; stages: the clock does it
	cancel   context.CancelFunc
	returned chan struct{}
	missed   atomic.Bool
}

func newCancels(t *testing.T, engine stack.Engine) *cancels {
	t.Helper()
	s := tiers.New(t, engine)
	toRedis, toSQL := stack.StartProxy(t, s.Redis), stack.StartProxy(t, s.Database.Server())
	c := &cancels{tiers: s, slowest: make(map[bool]time.Duration)}
	c.Locker = c.open(t, toRedis.Addr(), toSQL.Addr())
	c.peer = c.open(t, s.Redis.Addr(), s.Database.Server().Addr())
	toRedis.OnRequest(func(r stack.Request) stack.Action { return c.each(r.Raw, c.redisRequest) })
	toRedis.OnReply(func(r stack.Request, reply stack.Reply) stack.Action {
		if reply.Failed() { // NOSCRIPT: the script comes once more
			return stack.Pass
		}
		return c.each(r.Raw, c.redisReply)
	})
	toSQL.OnRequest(func(r stack.Request) stack.Action {
		if !isClaim(r) {
			return stack.Pass
		}
		return c.each(r.Raw, c.claimRequest)
	})
	toSQL.OnReply(func(r stack.Request, reply stack.Reply) stack.Action {
		// A claim of a key never seen updates nothing first; its grant is the
		// insert.
		if reply.Failed() || !isClaim(r) {
			return stack.Pass
		}
		insert := r.Has("INSERT INTO")
		return c.each(r.Raw, func(key string, u *underWay) {
			if insert != strings.Contains(key, "/old") {
				c.at(u, afterCommit)
			}
		})
	})
	return c
}

// open makes a locker on a pool that the test can look into.
func (c *cancels) open(t *testing.T, redisAddr, sqlAddr string) *tier.Locker {
	t.Helper()
	filter, err := redisfast.Open(c.tiers.Redis.URLAt(redisAddr), redisfast.WithPrefix(c.tiers.Prefix))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", tiers.WithParameters(c.tiers.Database.DSNAt(sqlAddr), "interpolateParams=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	c.pools = append(c.pools, db)
	authority, err := mysqlauth.New(db, mysqlauth.WithSweepInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tier.New(filter, authority, tier.WithNamespace("cancel"), tier.WithTTL(time.Minute), tier.WithWait(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

const poolSize = 8

// isClaim tells a claim from a look, a release or a settling.
func isClaim(r stack.Request) bool { return r.Has("INSERT INTO") || r.Has("SET l.fence = ") }

var keyPattern = regexp.MustCompile(`cancel/(old|new)\d{7}`)

// each calls f for the acquires whose keys a request carries.
func (c *cancels) each(raw []byte, f func(key string, u *underWay)) stack.Action {
	for _, key := range keyPattern.FindAll(raw, -1) {
		if u, ok := c.under.Load(string(key)); ok {
			f(string(key), u.(*underWay))
		}
	}
	return stack.Pass
}

func (c *cancels) redisRequest(_ string, u *underWay) {
	if stage(u.stage.Load()) == beforeRedis {
		c.at(u, beforeRedis)
	}
}

func (c *cancels) redisReply(_ string, u *underWay)   { c.at(u, afterRedis) }
func (c *cancels) claimRequest(_ string, u *underWay) { c.at(u, afterSent) }

// at notes that an acquire has reached a stage, and cancels it there if that is
// its lot: what is in the proxy stays there until the caller has left.
func (c *cancels) at(u *underWay, s stage) {
	if int32(s) > u.stage.Load() {
		u.stage.Store(int32(s))
	}
	if u.force != s {
		return
	}
	u.cancel()
	select {
	case <-u.returned:
	case <-time.After(5 * time.Second):
		u.missed.Store(true)
	}
}

// usage is what an idle locker occupies.
type usage struct {
	goroutines, inUse, threads int
	dump                       string
}

func (u usage) String() string {
	return fmt.Sprintf("%d goroutines, %d connections in use, %d server threads", u.goroutines, u.inUse, u.threads)
}

// usage counts what is in use; idle connections of the pools are closed first.
// Goroutines of the proxies are as many as Redis's client has connections.
func (c *cancels) usage(t *testing.T) usage {
	t.Helper()
	var u usage
	for _, db := range c.pools {
		db.SetMaxIdleConns(-1)
		db.SetMaxIdleConns(poolSize)
		u.inUse += db.Stats().InUse
	}
	time.Sleep(200 * time.Millisecond)
	stacks := make([]byte, 16<<20)
	for goroutine := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if !strings.Contains(goroutine, "/stack.(*") && !strings.Contains(goroutine, "toxiproxy") {
			u.goroutines++
			u.dump += goroutine + "\n\n"
		}
	}
	u.threads = c.tiers.Count(t, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = ?", c.tiers.Database.User())
	return u
}

const cancelWorkers = 32

// key is one that no acquire has had before; every second one has a row.
func (c *cancels) key(i int64) string {
	if i%2 == 0 {
		return fmt.Sprintf("new%07d", i)
	}
	return fmt.Sprintf("old%07d", i)
}

// warmUp measures an acquire under the load of the test, and opens what
// connections there will be.
func (c *cancels) warmUp(t *testing.T) (p99 time.Duration) {
	t.Helper()
	var workers sync.WaitGroup
	for range cancelWorkers {
		workers.Go(func() {
			for range 30 {
				c.uncancelled(t, c.Locker)
				c.uncancelled(t, c.peer)
			}
		})
	}
	workers.Wait()
	// Each has a subscription connection as soon as one of its callers waits.
	for _, l := range []*tier.Locker{c.Locker, c.peer} {
		c.mustWait(t, l)
	}
	if t.Failed() {
		t.FailNow()
	}
	time.Sleep(2 * time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.p99
}

// uncancelled measures an acquire of a key of its own.
func (c *cancels) uncancelled(t *testing.T, l *tier.Locker) {
	start := time.Now()
	lease, err := l.Acquire(t.Context(), fmt.Sprintf("free%07d", c.free.Add(1)))
	took := time.Since(start)
	if err != nil {
		t.Errorf("acquire: %v", err)
		return
	}
	c.release(t, lease)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slowestOf = max(c.slowestOf, took)
	c.ordinary = append(c.ordinary, took)
	if len(c.ordinary)%100 == 0 {
		c.ordinary = c.ordinary[max(0, len(c.ordinary)-1000):]
		all := slices.Sorted(slices.Values(c.ordinary))
		c.median, c.p99 = all[len(all)/2], all[len(all)*99/100]
	}
}

// instant is one of the p99 of an acquire; most are within its median, since an
// acquire that is over cannot be cancelled.
func (c *cancels) instant() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rand.N(4) == 0 {
		return rand.N(c.p99)
	}
	return rand.N(c.median)
}

// mustWait makes a caller of l wait for a key that the other process has.
func (c *cancels) mustWait(t *testing.T, l *tier.Locker) {
	t.Helper()
	holder := c.peer
	if l == c.peer {
		holder = c.Locker
	}
	held, err := holder.Acquire(t.Context(), "warm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), "warm", tier.WithWait(500*time.Millisecond)); !errors.Is(err, tier.ErrHeld) {
		t.Fatalf("a held key: %v, want ErrHeld", err)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (c *cancels) run(t *testing.T, total, perStage int) {
	t.Helper()
	prepare(t, c)
	forced := int(stages) * perStage
	var next atomic.Int64
	var workers sync.WaitGroup
	for range cancelWorkers {
		workers.Go(func() {
			for !t.Failed() {
				i := int(next.Add(1)) - 1
				if i%4 == 0 {
					c.uncancelled(t, c.Locker)
				}
				switch {
				case i < forced:
					c.one(t, stage(i%int(stages)), 0)
				case c.cancelled() < total:
					c.one(t, stages, c.instant())
				default:
					return
				}
			}
		})
	}
	workers.Wait()
}

func (c *cancels) cancelled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, count := range c.counts {
		n += count
	}
	return n
}

// prepare makes rows for what follows.
func prepare(t *testing.T, c *cancels) {
	t.Helper()
	first := c.keys.Load()
	most := int64(12_000)
	if soak {
		most = 60_000
	}
	for at := first; at < first+most; at += 1000 {
		var keys []string
		for i := at; i < at+1000; i++ {
			if key := c.key(i); strings.HasPrefix(key, "old") {
				keys = append(keys, "('cancel/"+key+"', 1, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))")
			}
		}
		c.tiers.Exec(t, "INSERT INTO lease (lock_key, fence, holder, acquired_at, expires_at) VALUES "+strings.Join(keys, ","))
	}
}

// one cancels an acquire, and lets another process have the key.
func (c *cancels) one(t *testing.T, force stage, after time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	want := context.Canceled
	if force == stages {
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), after)
		want = context.DeadlineExceeded
	}
	defer cancel()
	number := c.keys.Add(1)
	key := c.key(number)
	u := &underWay{force: force, cancel: cancel, returned: make(chan struct{})}
	c.under.Store("cancel/"+key, u)
	lease, err := c.Acquire(ctx, key)
	reached := stage(u.stage.Load())
	returned := time.Now()
	close(u.returned)
	if err == nil {
		if force != stages {
			t.Errorf("granted, though cancelled %s", force)
		}
		c.release(t, lease)
		c.mu.Lock()
		c.early++
		c.mu.Unlock()
		return
	}
	if !errors.Is(err, want) {
		t.Errorf("cancelled %s: %v, want %v", reached, err, want)
	}
	if u.missed.Load() {
		t.Errorf("cancelled %s, and not back in 5s", force)
	}
	if force != stages && reached != force {
		t.Errorf("cancelled %s instead of %s", reached, force)
	}
	c.mu.Lock()
	c.counts[reached]++
	c.mu.Unlock()
	// Of two keys another process wants one at once. That of the other is
	// looked at in the end: a grant would overwrite a mark that was left.
	if number/2%2 == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.later = append(c.later, key)
		return
	}
	got, err := c.peer.Acquire(t.Context(), key)
	waited := time.Since(returned)
	if err != nil {
		t.Errorf("cancelled %s; another process: %v", reached, err)
		return
	}
	c.release(t, got)
	isNew := strings.HasPrefix(key, "new")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slowest[isNew] = max(c.slowest[isNew], waited)
}

// askLater has another process ask for the keys that nobody has wanted since:
// each is free at once.
func (c *cancels) askLater(t *testing.T) {
	keys := make(chan string, len(c.later))
	for _, key := range c.later {
		keys <- key
	}
	close(keys)
	var workers sync.WaitGroup
	for range cancelWorkers {
		workers.Go(func() {
			for key := range keys {
				lease, err := c.peer.TryAcquire(t.Context(), key)
				if err != nil {
					t.Errorf("cancelled, and not free two seconds later: %v", err)
					continue
				}
				c.release(t, lease)
			}
		})
	}
	workers.Wait()
}

// release gives back. On a busy machine the answer may take more than the
// second that Release has for it; that the key is free is counted at the end.
func (c *cancels) release(t *testing.T, lease *tier.Lease) {
	err := lease.Release(t.Context())
	if err == nil {
		return
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("release: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown++
}

func (c *cancels) report(t *testing.T, total, perStage int, took time.Duration) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d cancels and %d grants in %v; the slowest successor took %v on a row, %v without; %d releases took over a second",
		total, c.early, took.Round(time.Millisecond), c.slowest[false], c.slowest[true], c.unknown)
	sum := 0
	for s, n := range c.counts {
		t.Logf("%s: %d", stage(s), n)
		sum += n
		if n < perStage {
			t.Errorf("%d cancels %s, at least %d are wanted", n, stage(s), perStage)
		}
	}
	if sum < total {
		t.Errorf("%d cancels, at least %d are wanted", sum, total)
	}
	// P5: a second and what a statement may take, and a lock wait for a new row;
	// and what an acquire takes on this machine at this time.
	t.Logf("the slowest acquire that nobody cancelled took %v", c.slowestOf)
	for isNew, limit := range map[bool]time.Duration{false: 1500 * time.Millisecond, true: 2500 * time.Millisecond} {
		if limit += c.slowestOf; c.slowest[isNew] > limit {
			t.Errorf("another process waited %v for a key, at most %v are promised", c.slowest[isNew], limit)
		}
	}
}
