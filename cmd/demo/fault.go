// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
)

// The faults of the demo.
const (
	faultNone        = "none"
	faultRedisKill   = "redis-kill"
	faultRedisFlush  = "redis-flush"
	faultMySQLPause  = "mysql-pause"
	faultMySQLKill   = "mysql-kill"
	faultHolderPause = "holder-pause"
	faultAll         = "all"
)

var faultNames = []string{faultNone, faultRedisKill, faultRedisFlush, faultMySQLPause, faultMySQLKill, faultHolderPause, faultAll}

// pauseTTLs is how long a stopped holder stays stopped: its lease is over by
// then, and others have had time to sell what it had read.
const pauseTTLs = 2.5

// act is one thing that is done to the shop.
type act int

const (
	flushRedis act = iota
	killRedis
	stopHolder
	pauseMySQL
	killMySQL
	// The ends of faults, no faults of their own.
	reviveRedis
	resumeMySQL
	reviveMySQL
)

func (a act) isFault() bool { return a < reviveRedis }

// startsMySQLOutage says that MySQL is out from here on, endsMySQLOutage until here.
func (a act) startsMySQLOutage() bool { return a == pauseMySQL || a == killMySQL }
func (a act) endsMySQLOutage() bool   { return a == resumeMySQL || a == reviveMySQL }

// step is an act and when it is due, counted from the start.
type step struct {
	at  time.Duration
	act act
}

// plan is the schedule of the fault that the options name.
func plan(o options) []step {
	share := func(percent int) time.Duration { return o.duration * time.Duration(percent) / 100 }
	switch o.fault {
	case faultRedisFlush:
		return flushes(share(20), share(80))
	case faultRedisKill:
		return []step{{share(30), killRedis}, {share(60), reviveRedis}}
	case faultMySQLPause:
		return []step{{share(30), pauseMySQL}, {share(60), resumeMySQL}}
	case faultMySQLKill:
		return []step{{share(30), killMySQL}, {share(60), reviveMySQL}}
	case faultHolderPause:
		return []step{{share(20), stopHolder}, {share(55), stopHolder}}
	case faultAll:
		return planAll(o)
	}
	return nil
}

// flushes are a flush every 500 ms.
func flushes(from, until time.Duration) []step {
	var steps []step
	for at := from; at <= until; at += 500 * time.Millisecond {
		steps = append(steps, step{at, flushRedis})
	}
	return steps
}

// episodes are what -fault all puts together: one of each, in an order that the
// seed draws, then more, as far as there is room. A restart takes time of its own.
var episodes = []struct {
	length func(ttl time.Duration) time.Duration
	steps  func(at, length time.Duration) []step
}{
	{fixed(1500 * time.Millisecond), func(at, length time.Duration) []step { return flushes(at, at+length) }},
	{fixed(2 * time.Second), between(killRedis, reviveRedis, 0)},
	{fixed(2500 * time.Millisecond), between(pauseMySQL, resumeMySQL, 0)},
	{fixed(4 * time.Second), between(killMySQL, reviveMySQL, 1500*time.Millisecond)},
	{
		func(ttl time.Duration) time.Duration { return time.Duration((pauseTTLs + 1.5) * float64(ttl)) },
		func(at, _ time.Duration) []step { return []step{{at, stopHolder}} },
	},
}

func fixed(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

// between does one act at the start and another early before the end.
func between(first, last act, early time.Duration) func(at, length time.Duration) []step {
	return func(at, length time.Duration) []step {
		return []step{{at, first}, {at + length - early, last}}
	}
}

// lull is the quiet at both ends and after each episode: marks of a Redis that
// forgot are back by then.
func lull(ttl time.Duration) time.Duration { return 2 * ttl }

func planAll(o options) []step {
	rng := rand.New(rand.NewPCG(uint64(o.seed), 1))
	var steps []step
	at := lull(o.ttl)
	for fits := true; fits; {
		fits = false
		for _, i := range rng.Perm(len(episodes)) {
			length := episodes[i].length(o.ttl)
			if at+length > o.duration-lull(o.ttl) {
				continue
			}
			fits = true
			steps = append(steps, episodes[i].steps(at, length)...)
			at += length + lull(o.ttl)
		}
	}
	return steps
}

// allRoom is what the longest episode needs.
func allRoom(ttl time.Duration) time.Duration {
	var longest time.Duration
	for _, e := range episodes {
		longest = max(longest, e.length(ttl))
	}
	return longest + 2*lull(ttl)
}

// faults counts the faults among the steps.
func faults(steps []step) int {
	n := 0
	for _, s := range steps {
		if s.act.isFault() {
			n++
		}
	}
	return n
}

// saboteur carries a plan out.
type saboteur struct {
	redis *stack.Server
	mysql *stack.Server
	crew  *crew
	ttl   time.Duration
	rng   *rand.Rand

	injected atomic.Int64
	underWay atomic.Value // string: what the live line says
	outages  []outage     // of MySQL; to be read when run has returned
}

// outage is a time in which MySQL was out.
type outage struct{ from, until instant }

// run does each step when it is due. It returns when all are done, or at the
// first that fails; ctx ends when the run is broken off: then only what ends a
// fault is still done, so that the books can be read.
func (s *saboteur) run(ctx context.Context, started time.Time, steps []step) error {
	holder := s.rng.IntN(len(s.crew.nodes))
	var quiet time.Time // a fault of MySQL waits for marks to be back
	for _, step := range steps {
		due := started.Add(step.at)
		if step.act.startsMySQLOutage() && due.Before(quiet) {
			due = quiet
		}
		select {
		case <-ctx.Done():
			if step.act.isFault() {
				return nil
			}
		case <-time.After(time.Until(due)):
		}
		var err error
		switch step.act {
		case flushRedis:
			s.underWay.Store("Redis flushed")
			err = s.flush(ctx)
		case killRedis:
			s.underWay.Store("Redis down")
			err = s.redis.Kill()
		case reviveRedis:
			err = s.redis.Restart(context.WithoutCancel(ctx))
		case stopHolder:
			holder = (holder + 1) % len(s.crew.nodes)
			err = s.stopHolder(ctx, s.crew.nodes[holder])
		case pauseMySQL:
			s.underWay.Store("MySQL silent")
			s.outages = append(s.outages, outage{from: now()})
			err = s.mysql.Pause()
		case killMySQL:
			s.underWay.Store("MySQL down")
			s.outages = append(s.outages, outage{from: now()})
			err = s.mysql.Kill()
		case resumeMySQL:
			err = s.mysql.Resume()
		case reviveMySQL:
			err = s.mysql.Restart(context.WithoutCancel(ctx))
		}
		if step.act.endsMySQLOutage() {
			s.outages[len(s.outages)-1].until = now()
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("inject the fault: %w", err)
		}
		if err == nil && step.act.isFault() {
			s.injected.Add(1)
		}
		switch step.act {
		case flushRedis, reviveRedis:
			quiet = time.Now().Add(lull(s.ttl))
		case killRedis, pauseMySQL, killMySQL:
			continue // it is under way until it is ended
		case stopHolder, resumeMySQL, reviveMySQL:
		}
		if step.act != flushRedis { // the next flush is near
			s.underWay.Store("")
		}
	}
	s.underWay.Store("")
	return nil
}

// flush uses a connection of its own for each flush: what is slow about it is
// not part of the fault.
func (s *saboteur) flush(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: s.redis.Addr(), MaxRetries: -1})
	defer client.Close() //nolint:errcheck // nothing is under way on it any more
	return client.FlushAll(ctx).Err()
}

// stopHolder has a node stop itself inside a critical section, and lets it go
// on when the holder's lease is long over.
func (s *saboteur) stopHolder(ctx context.Context, node *process) error {
	if err := node.tell(doPause); err != nil {
		return err
	}
	if err := s.await(ctx, node, node.pausing, 0); err != nil {
		return err
	}
	s.underWay.Store(fmt.Sprintf("node %d stopped while it holds", node.number))
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(pauseTTLs * float64(s.ttl))):
	}
	return s.await(ctx, node, node.resumed, 50*time.Millisecond)
}

// await waits for a word of the node. With a period it lets the node go on
// again and again: a process says that it stops itself before it does, so one
// signal could come too early.
func (s *saboteur) await(ctx context.Context, node *process, word <-chan struct{}, period time.Duration) error {
	limit := time.After(10 * time.Second)
	for {
		var again <-chan time.Time
		if period > 0 {
			node.cont()
			again = time.After(period)
		}
		select {
		case <-word:
			return nil
		case <-again:
		case <-node.gone:
			return node.failure()
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("node %d did not stop in its critical section, or not go on", node.number)
		}
	}
}
