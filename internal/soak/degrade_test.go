// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// twoPolicies stop, and go on locally.
var twoPolicies = []tier.Policy{
	{Match: "payment/**", Degrade: fallback.Ladder{fallback.Retry, fallback.FailClosed}},
	{Match: "inventory/**", Degrade: fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed}, LocalFor: 30 * time.Second},
}

// member is a locker of a test and what it stands on.
type member struct {
	*tier.Locker
	tiers.Node
}

func join(t *testing.T, s *tiers.Tiers, options ...tier.Option) *member {
	t.Helper()
	m := &member{Node: s.Node(t)}
	var err error
	m.Locker, err = tier.New(m.Filter, m.Authority, append([]tier.Option{
		tier.WithNamespace(soakNamespace), tier.WithTTL(5 * time.Second), tier.WithWait(2 * time.Second),
		tier.WithPolicies(twoPolicies...), tier.WithBreaker(breaker.Settings{ProbeEvery: 250 * time.Millisecond}),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeNode(m.Locker); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := m.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *member) must(t *testing.T, key string, want tier.Level) *tier.Lease {
	t.Helper()
	lease, err := m.Acquire(t.Context(), key)
	if err != nil {
		t.Fatalf("acquire %q: %v", key, err)
	}
	if lease.Level() != want {
		t.Fatalf("%q was granted at level %s, want %s", key, lease.Level(), want)
	}
	return lease
}

func released(t *testing.T, leases ...*tier.Lease) {
	t.Helper()
	for _, lease := range leases {
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release %q: %v", lease.Key(), err)
		}
	}
}

// settles waits until an acquire of the key has the level.
func (m *member) settles(t *testing.T, key string, want tier.Level, within time.Duration) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		lease, err := m.Acquire(t.Context(), key, tier.WithWait(300*time.Millisecond))
		if err == nil {
			level := lease.Level()
			released(t, lease)
			if level == want {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%q is not granted at level %s within %v; the last answer: %v, %v", key, want, within, lease, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// opens asks until the key's policy has left the tiers.
func (m *member) opens(t *testing.T, key string) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); m.Rung(key) == fallback.None; {
		if time.Now().After(end) {
			t.Fatal("the breaker does not open")
		}
		if lease, err := m.TryAcquire(t.Context(), key); err == nil {
			released(t, lease)
		}
	}
}

// outage is how MySQL goes out, and comes back.
type outage struct {
	name    string
	out, in func(t *testing.T, m *member, server *stack.Server)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var outages = []outage{
	{
		"paused",
		func(t *testing.T, _ *member, server *stack.Server) { noError(t, server.Pause()) },
		func(t *testing.T, _ *member, server *stack.Server) { noError(t, server.Resume()) },
	},
	{
		"black hole",
		func(_ *testing.T, m *member, _ *stack.Server) { m.ToMySQL.BlackHole() },
		func(t *testing.T, m *member, _ *stack.Server) { noError(t, m.ToMySQL.Heal()) },
	},
	{
		"gone",
		func(_ *testing.T, m *member, _ *stack.Server) { m.ToMySQL.Cut() },
		func(t *testing.T, m *member, _ *stack.Server) { noError(t, m.ToMySQL.Heal()) },
	},
}

// MySQL goes out and comes back: one policy stops and sends nothing, the other
// goes on in this process without a fence, and both are back within two seconds.
func TestDegrade_mysqlOut_L7_L9(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			server := stack.StartSQL(t, engine) // it is paused
			for _, o := range outages {
				t.Run(o.name, func(t *testing.T) {
					s := tiers.On(t, stack.SharedRedis(t), server)
					m := join(t, s)
					released(t, m.must(t, "payment/1", tier.LevelFull), m.must(t, "inventory/1", tier.LevelFull))
					time.Sleep(1500 * time.Millisecond) // what is done behind, and idle lanes

					o.out(t, m, server)
					m.opens(t, "payment/1")
					time.Sleep(time.Second) // what was under way has ended
					m.ToRedis.Mark()
					m.ToMySQL.Mark()
					began := time.Now()
					for range 200 {
						_, err := m.Acquire(t.Context(), "payment/1")
						said, _ := errors.AsType[*tier.Error](err)
						if !errors.Is(err, tier.ErrUnavailable) || said.RetryAfter <= 0 {
							t.Fatalf("payment: %v, want ErrUnavailable that says when to ask again", err)
						}
					}
					// The breaker's own probe goes to MySQL alone: a connection every 250 ms,
					// of which nothing gets through.
					probes := int(time.Since(began)/(250*time.Millisecond)) + 2
					if n := m.ToRedis.Bytes() + m.ToRedis.Requests(); n != 0 {
						t.Errorf("200 acquires that fail closed sent %d bytes and requests to Redis", n)
					}
					if n := m.ToMySQL.Requests() + m.ToMySQL.Dials(); n > 3*probes {
						t.Errorf("200 acquires that fail closed made %d requests and dials to MySQL, the probe %d at most", n, 3*probes)
					}
					if took := time.Since(began); took > time.Second {
						t.Errorf("200 of them took %v", took)
					}

					lease := m.must(t, "inventory/1", tier.LevelLocal)
					unfenced(t, lease)
					if _, err := m.TryAcquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrHeld) {
						t.Errorf("a second one: %v, want ErrHeld", err)
					}
					released(t, lease)

					o.in(t, m, server)
					back := time.Now()
					m.settles(t, "payment/1", tier.LevelFull, 2*time.Second+leeway)
					m.settles(t, "inventory/1", tier.LevelFull, 2*time.Second+leeway)
					t.Logf("back on both tiers after %v", time.Since(back).Round(time.Millisecond))
				})
			}
		})
	}
}

// leeway is what a starved machine may add to a bound of the product's.
const leeway = 3 * time.Second

// unfenced checks that a lease's guarded write is refused before any I/O: its
// transaction is one that could not do any.
func unfenced(t *testing.T, lease *tier.Lease) {
	t.Helper()
	tx := &silentTx{}
	if err := idempotency.ConfirmTx(t.Context(), tx, lease); !errors.Is(err, idempotency.ErrUnfenced) {
		t.Errorf("the guarded write of a local lease: %v, want ErrUnfenced", err)
	}
	if tx.asked.Load() != 0 {
		t.Errorf("it was refused after %d statements", tx.asked.Load())
	}
}

// silentTx counts what it is asked for.
type silentTx struct{ asked atomic.Int64 }

func (s *silentTx) QueryRowContext(context.Context, string, ...any) *sql.Row {
	s.asked.Add(1)
	return nil
}

func (s *silentTx) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	s.asked.Add(1)
	return nil, sql.ErrConnDone
}

func (s *silentTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	s.asked.Add(1)
	return nil, sql.ErrConnDone
}

func (s *silentTx) Commit() error   { return nil }
func (s *silentTx) Rollback() error { return nil }

// Claims fail and renewals do not: what is held is renewed, and released.
func TestDegrade_partialRenews(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			m := join(t, s, tier.WithTTL(3*time.Second))
			var held []*tier.Lease
			for i := range 3 { // few: an answer to a renewal between five claims is a success
				held = append(held, m.must(t, fmt.Sprintf("payment/%d", i), tier.LevelFull))
			}
			claim := stack.Having("l.fence = l.fence")
			m.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
				if claim(r) || stack.Having("canary")(r) {
					return stack.SQLError(1047, "WSREP has not yet prepared node for application use")
				}
				return stack.Pass
			})
			m.opens(t, "payment/new")
			time.Sleep(7 * time.Second) // more than two TTLs
			if m.Rung("payment/new") == fallback.None {
				t.Error("the breaker has closed although claims fail")
			}
			for _, lease := range held {
				if err := lease.Err(); err != nil {
					t.Errorf("%q: %v", lease.Key(), err)
				}
			}
			released(t, held...)
			if n := s.Held(t); n != 0 {
				t.Errorf("%d rows are held after their release", n)
			}
			m.ToMySQL.OnRequest(nil)
			m.settles(t, "payment/new", tier.LevelFull, 2*time.Second+leeway)
		})
	}
}

// A holds locally and has read. MySQL returns; C is granted, writes and releases;
// A is promoted, and its write is refused all the same.
func TestDegrade_promotionTrap(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			a, c := join(t, s), join(t, s)
			a.ToMySQL.Cut()
			a.opens(t, "inventory/1")
			lease := a.must(t, "inventory/1", tier.LevelLocal)
			// Redis forgets the mark that kept C out, and A's claim is kept from MySQL until C is done.
			s.Flush(t)
			a.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
				if stack.Having("l.fence = l.fence")(r) || stack.Having("INSERT INTO")(r) && stack.Having("lease")(r) {
					return stack.HangUp
				}
				return stack.Pass
			})
			noError(t, a.ToMySQL.Heal())
			other := c.must(t, "inventory/1", tier.LevelFull)
			released(t, other)
			a.ToMySQL.OnRequest(nil)
			for end := time.Now().Add(10 * time.Second); s.Held(t) == 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("A is not promoted; its lease: %v", lease.Err())
				}
			}
			if err := lease.Verify(t.Context()); err != nil {
				t.Errorf("promoted: %v", err)
			}
			if lease.Level() != tier.LevelLocal || lease.Fence() != 0 {
				t.Errorf("promoted to level %s with fence %d", lease.Level(), lease.Fence())
			}
			unfenced(t, lease)
			if _, err := c.TryAcquire(t.Context(), "inventory/1"); !errors.Is(err, tier.ErrHeld) {
				t.Errorf("C after the promotion: %v, want ErrHeld", err)
			}
			released(t, lease)
			c.settles(t, "inventory/1", tier.LevelFull, 2*time.Second+leeway)
		})
	}
}

// Redis is killed and restarted under load: nobody is refused for it, and soon
// after it answers both tiers are behind leases again.
func TestDegrade_redisRestarts(t *testing.T) {
	t.Parallel()
	rounds := 2
	if soak {
		rounds = 10
	}
	redisServer := stack.StartRedis(t)
	s := tiers.On(t, redisServer, stack.SharedSQL(t, stack.MariaDB))
	m := join(t, s)
	var full, authority, wrongs atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var crew sync.WaitGroup
	for i := range 16 {
		crew.Go(func() {
			for rng := nodeRand(i); ctx.Err() == nil; {
				began := time.Now()
				lease, err := m.Acquire(ctx, fmt.Sprintf("payment/%d", rng.IntN(8)))
				if took := time.Since(began); took > 2*time.Second+100*time.Millisecond+leeway {
					t.Errorf("an acquire took %v", took)
				}
				switch {
				case err == nil:
				case ctx.Err() != nil || errors.Is(err, tier.ErrHeld):
					continue
				default:
					wrongs.Add(1)
					t.Errorf("%v", err)
					return
				}
				if lease.Level() == tier.LevelFull {
					full.Add(1)
				} else {
					authority.Add(1)
				}
				if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	perSecond := func() float64 {
		before, began := full.Load()+authority.Load(), time.Now()
		time.Sleep(time.Second)
		return float64(full.Load()+authority.Load()-before) / time.Since(began).Seconds()
	}
	usual := perSecond()
	for range rounds {
		noError(t, redisServer.Kill())
		time.Sleep(time.Second)
		noError(t, redisServer.Restart(t.Context()))
		before := full.Load()
		time.Sleep(2 * time.Second)
		if full.Load() == before {
			t.Error("no lease on both tiers within two seconds of Redis answering")
		}
		rate := perSecond()
		t.Logf("%.0f a second before, %.0f two seconds after Redis is back", usual, rate)
		if soak && rate < usual/2 { // a measurement
			t.Errorf("%.0f a second, less than half of %.0f", rate, usual)
		}
	}
	stop()
	crew.Wait()
	if authority.Load() == 0 || wrongs.Load() > 0 {
		t.Errorf("%d leases without Redis, %d refusals", authority.Load(), wrongs.Load())
	}
}

// Crowds and clients that go away are no fault of the tiers: their breakers stay
// closed.
func TestDegrade_crowdIsNoFault_L1_L5(t *testing.T) {
	t.Parallel()
	total := int64(4000)
	if soak {
		total = 100_000
	}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := tiers.New(t, engine)
			m := join(t, s, tier.WithBreaker(breaker.Settings{Consecutive: 2}))
			var asked, held, cancelled, granted atomic.Int64
			var crew sync.WaitGroup
			for i := range 64 {
				crew.Go(func() {
					for rng := nodeRand(i); asked.Add(1) <= total; {
						ctx, cancel := context.WithCancel(t.Context())
						if rng.IntN(10) == 0 {
							ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rng.IntN(3000))*time.Microsecond)
						}
						lease, err := m.Acquire(ctx, fmt.Sprintf("payment/%d", rng.IntN(6)), tier.WithWait(time.Duration(rng.IntN(2))*5*time.Millisecond))
						cancel()
						switch {
						case err == nil:
							granted.Add(1)
							if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("release: %v", err)
							}
						case errors.Is(err, context.DeadlineExceeded):
							cancelled.Add(1)
						case errors.Is(err, tier.ErrHeld):
							held.Add(1)
						case !errors.Is(err, tier.ErrUnavailable):
							t.Error(err)
						}
						if rung := m.Rung("payment/1"); rung != fallback.None {
							t.Errorf("a crowd opened the breaker: %s", rung)
							return
						}
					}
				})
			}
			crew.Wait()
			t.Logf("granted %d, held %d, cancelled %d", granted.Load(), held.Load(), cancelled.Load())
			if held.Load() < total/2 || cancelled.Load() < total/50 {
				t.Error("too little of what this is about")
			}
		})
	}
}

// Policies are replaced all the time under load: what is held keeps its terms, who
// waits takes the new ones.
func TestDegrade_reloads(t *testing.T) {
	t.Parallel()
	reloads := 100
	if soak {
		reloads = 1000
	}
	s := tiers.New(t, stack.MariaDB)
	named := func(i int) []tier.Policy {
		return []tier.Policy{{Match: "**", Options: []tier.AcquireOption{tier.WithHolder(fmt.Sprintf("reload %d", i))}}}
	}
	m := join(t, s, tier.WithPolicies(named(0)...))
	held := m.must(t, "held", tier.LevelFull)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var crew sync.WaitGroup
	for i := range 64 {
		crew.Go(func() {
			for rng := nodeRand(i); ctx.Err() == nil; {
				lease, err := m.Acquire(ctx, fmt.Sprintf("k/%d", rng.IntN(32)))
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, tier.ErrHeld) {
						t.Error(err)
					}
					continue
				}
				if err := lease.Release(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
		})
	}
	waiter := make(chan *tier.Lease, 1)
	go func() {
		lease, err := m.Acquire(t.Context(), "held", tier.WithWait(5*time.Minute))
		if err != nil {
			t.Error(err)
		}
		waiter <- lease
	}()
	for i := 1; i <= reloads; i++ {
		noError(t, m.SetPolicies(named(i)...))
		time.Sleep(2 * time.Millisecond)
	}
	if held.Holder() != "reload 0" || held.Err() != nil {
		t.Errorf("a held lease: holder %q, %v", held.Holder(), held.Err())
	}
	released(t, held)
	next := <-waiter
	if want := fmt.Sprintf("reload %d", reloads); next == nil || next.Holder() != want {
		t.Errorf("who waited through all reloads: %v, want holder %q", next, want)
	} else {
		released(t, next)
	}
	stop()
	crew.Wait()
}
