// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// probeEvery is that of the outage tests.
const probeEvery = 100 * time.Millisecond

// soonOut notices an outage at its second failure.
func soonOut() tier.Option {
	return tier.WithBreaker(breaker.Settings{Consecutive: 2, ProbeEvery: probeEvery, ProbeTimeout: 300 * time.Millisecond})
}

// logged is an option, and what it lets a test see of the tiers' health.
func logged() (tier.Option, *observer.ObservedLogs) {
	core, log := observer.New(zapcore.InfoLevel)
	return tier.WithLogger(zap.New(core)), log
}

// refuses makes a member's MySQL refuse claims and the breaker's probe, so that
// its breaker opens and nothing is left of unknown outcome.
func (m *member) refuses() {
	m.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
		if isClaim(r) || isProbe(r) {
			return stack.SQLError(1047, "WSREP has not yet prepared node for application use")
		}
		return stack.Pass
	})
}

func isClaim(r stack.Request) bool {
	return r.Has("SET l.fence = ") || r.Has("INSERT INTO") && r.Has("lease")
}

// isProbe accepts what the breaker's own probe sends: the session's preparation,
// the clock, and a canary row made and taken back.
func isProbe(r stack.Request) bool {
	return r.Has("canary") || r.Has("SET SESSION") || strings.HasPrefix(r.Text, "SELECT") && r.Has("UTC_TIMESTAMP(6)") && !r.Has("lease")
}

// shift is workers of one process who lock, hold for a moment and release, and
// what became of it.
type shift struct {
	m    *member
	stop context.CancelFunc
	ctx  context.Context
	crew sync.WaitGroup

	asked, held             atomic.Int64
	full, authority, local  atomic.Int64
	unavailable, unanswered atomic.Int64
	refused                 atomic.Int64 // of the unavailable: asked in the outage, not caught by it
	holders                 sync.Map     // key to its holders in this process
}

func (s *shift) works(t *testing.T, workers int, prefix string, keys int) {
	for i := range workers {
		s.crew.Go(func() {
			for rng := nodeRand(i); s.ctx.Err() == nil; {
				s.turn(t, fmt.Sprintf("%s/%d", prefix, rng.IntN(keys)))
			}
		})
	}
}

func (s *shift) ends() {
	s.stop()
	s.crew.Wait()
}

func (s *shift) turn(t *testing.T, key string) {
	open := s.m.Rung(key) != fallback.None
	began := time.Now()
	lease, err := s.m.Acquire(s.ctx, key)
	if took := time.Since(began); took > 2*time.Second+100*time.Millisecond+leeway {
		t.Errorf("an acquire of %q took %v, its wait is 2 s: %v", key, took, err)
	}
	s.asked.Add(1)
	switch {
	case err == nil:
	case s.ctx.Err() != nil:
		return
	case errors.Is(err, tier.ErrUnavailable):
		s.unavailable.Add(1)
		said, _ := errors.AsType[*tier.Error](err)
		if open && s.m.Rung(key) != fallback.None {
			s.refused.Add(1)
			if said.RetryAfter <= 0 {
				t.Errorf("%q: %v, which does not say when to ask again", key, err)
			}
		}
		time.Sleep(5 * time.Millisecond) // or they do nothing but ask
		return
	case errors.Is(err, tier.ErrHeld):
		s.held.Add(1)
		return
	default:
		t.Errorf("%q: %v", key, err)
		return
	}
	switch lease.Level() {
	case tier.LevelFull:
		s.full.Add(1)
	case tier.LevelAuthority:
		s.authority.Add(1)
	case tier.LevelLocal:
		s.local.Add(1)
		if lease.Fence() != 0 {
			t.Errorf("%q: fence %d at level local", key, lease.Fence())
		}
	case tier.LevelFilter, tier.LevelNone:
		t.Errorf("%q at level %s", key, lease.Level())
	}
	n, _ := s.holders.LoadOrStore(key, new(atomic.Int64))
	if now := n.(*atomic.Int64).Add(1); now != 1 {
		t.Errorf("%q has %d holders in one process", key, now)
	}
	n.(*atomic.Int64).Add(-1)
	if err := lease.Release(context.Background()); err != nil {
		s.unanswered.Add(1)
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, tier.ErrLost) {
			t.Errorf("release %q: %v", key, err)
		}
	}
}

// outage is how MySQL goes out, and comes back.
type outage struct {
	name    string
	out, in func(t *testing.T, m *member, server *stack.Server)
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

// MySQL goes out in the middle of a run, and comes back: see the two policies. Who
// holds nothing sends nothing, but for the breaker's probe.
func TestOutage_midRun_L7_L9(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			server := stack.StartSQL(t, engine) // it is paused
			for _, o := range outages {
				t.Run(o.name, func(t *testing.T) { runMidRun(t, tiers.On(t, stack.SharedRedis(t), server), o) })
			}
		})
	}
}

func runMidRun(t *testing.T, s *tiers.Tiers, o outage) {
	server := s.Database.Server()
	logger, log := logged()
	busy := join(t, s, soonOut(), logger, tier.WithTTL(2*time.Second))
	quiet := join(t, s, soonOut())
	payments, inventory := &shift{m: busy}, &shift{m: busy}
	for _, of := range []*shift{payments, inventory} {
		of.ctx, of.stop = context.WithCancel(t.Context())
		defer of.ends()
	}
	payments.works(t, 8, "payment", 4)
	inventory.works(t, 8, "inventory", 4)
	time.Sleep(300 * time.Millisecond)
	if payments.full.Load() == 0 || inventory.full.Load() == 0 {
		t.Fatal("no lease on both tiers before the outage")
	}

	quiet.refuses()
	quiet.opens(t, "payment/quiet")
	o.out(t, busy, server)
	o.out(t, quiet, server)
	t.Cleanup(func() { // a paused server closes nothing
		o.in(t, busy, server)
		o.in(t, quiet, server)
	})
	until(t, 10*time.Second, "the breaker opens under load", func() bool { return busy.Rung("payment/1") != fallback.None })
	sendsNothing(t, quiet)

	// What it holds when MySQL is back is promoted.
	long := busy.must(t, "inventory/long", tier.LevelLocal)
	unfenced(t, long)
	refusedBefore, localBefore := payments.unavailable.Load(), inventory.local.Load()
	// A release that MySQL does not answer keeps its key's line for up to a second.
	until(t, 2*time.Second+leeway, "payments are refused and inventory goes on", func() bool {
		return payments.unavailable.Load() > refusedBefore+20 && inventory.local.Load() > localBefore+20
	})
	if n := inventory.refused.Load(); n > 0 {
		t.Errorf("%d acquires of inventory were refused although it may go on locally", n)
	}
	if n := payments.local.Load(); n > 0 {
		t.Errorf("%d payments went on locally", n)
	}

	o.in(t, busy, server)
	o.in(t, quiet, server)
	quiet.ToMySQL.OnRequest(nil)
	back := time.Now()
	for _, key := range []string{"payment/back", "inventory/back"} {
		busy.settles(t, key, tier.LevelFull, 2*time.Second+leeway)
		quiet.settles(t, key, tier.LevelFull, 2*time.Second+leeway)
	}
	t.Logf("back on both tiers after %v; payments: %d granted, %d refused; inventory: %d granted, %d of it locally",
		time.Since(back).Round(time.Millisecond), payments.full.Load()+payments.authority.Load(), payments.unavailable.Load(),
		inventory.full.Load()+inventory.authority.Load()+inventory.local.Load(), inventory.local.Load())
	until(t, 10*time.Second, "what is held locally is promoted", func() bool { return isTaken(t, s, "inventory/long") })
	if err := long.Verify(t.Context()); err != nil {
		t.Errorf("what was held through the outage: %v", err)
	}
	unfenced(t, long)
	released(t, long)
	localBefore = inventory.local.Load()
	time.Sleep(200 * time.Millisecond)
	payments.ends()
	inventory.ends()
	if n := inventory.local.Load() - localBefore; n > 0 {
		t.Errorf("%d local leases after all is well", n)
	}
	out, in := log.FilterMessageSnippet("mysql is out").Len(), log.FilterMessage("tier is back").Len()
	if out != 1 || in != 1 {
		t.Errorf("the outage was told %d times, its end %d times; want once", out, in)
	}
	until(t, 10*time.Second, "no row and no mark is left", func() bool { return s.Held(t) == 0 && s.Marks(t) == 0 })
}

// until waits for what must come true.
func until(t *testing.T, within time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// isTaken reports whether the key's row has a holder.
func isTaken(t *testing.T, s *tiers.Tiers, key string) bool {
	t.Helper()
	return s.Count(t, "SELECT COUNT(*) FROM lease WHERE lock_key = ? AND token IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)", soakNamespace+"/"+key) > 0
}

// sendsNothing counts what acquires that fail closed send.
func sendsNothing(t *testing.T, m *member) {
	t.Helper()
	var others atomic.Int64
	m.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
		if !isProbe(r) {
			others.Add(1)
			t.Logf("sent: %s %.100q", r.Verb, r.Text)
		}
		return stack.Pass
	})
	time.Sleep(4 * probeEvery) // what was under way has ended
	m.ToRedis.Mark()
	m.ToMySQL.Mark()
	others.Store(0)
	began := time.Now()
	for range 100 {
		for name, acquire := range map[string]func() error{
			"acquire": func() error { _, err := m.Acquire(t.Context(), "payment/1"); return err },
			"try":     func() error { _, err := m.TryAcquire(t.Context(), "payment/1"); return err },
			"all":     func() error { _, err := m.AcquireAll(t.Context(), "payment/1", "payment/2"); return err },
			"any":     func() error { _, err := m.AcquireAny(t.Context(), tier.Segments("payment/3", 4)...); return err },
		} {
			err := acquire()
			said, _ := errors.AsType[*tier.Error](err)
			if !errors.Is(err, tier.ErrUnavailable) || said == nil || said.RetryAfter <= 0 {
				t.Fatalf("%s: %v, want ErrUnavailable that says when to ask again", name, err)
			}
		}
	}
	took := time.Since(began)
	if n := m.ToRedis.Bytes() + m.ToRedis.Requests() + m.ToRedis.Dials(); n != 0 {
		t.Errorf("acquires that fail closed: %d bytes, requests and dials at Redis", n)
	}
	if n := others.Load(); n != 0 {
		t.Errorf("acquires that fail closed: %d requests at MySQL besides the probe's", n)
	}
	if n, most := m.ToMySQL.Dials(), int(took/probeEvery)+1; n > most {
		t.Errorf("acquires that fail closed: %d dials at MySQL, the probe makes %d at most", n, most)
	}
}
