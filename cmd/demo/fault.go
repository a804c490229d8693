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
	faultHolderPause = "holder-pause"
)

// pauseTTLs is how long a stopped holder stays stopped: its lease is over by
// then, and others have had time to sell what it had read.
const pauseTTLs = 2.5

// act is one thing that is done to the shop.
type act int

const (
	flushRedis act = iota
	killRedis
	reviveRedis // the end of killRedis, no fault of its own
	stopHolder
)

// step is an act and when it is due, counted from the start.
type step struct {
	at  time.Duration
	act act
}

// plan is the schedule of a fault over a run of length d.
func plan(fault string, d time.Duration) []step {
	share := func(percent int) time.Duration { return d * time.Duration(percent) / 100 }
	switch fault {
	case faultRedisFlush:
		var steps []step
		for at := share(20); at <= share(80); at += 500 * time.Millisecond {
			steps = append(steps, step{at, flushRedis})
		}
		return steps
	case faultRedisKill:
		return []step{{share(30), killRedis}, {share(60), reviveRedis}}
	case faultHolderPause:
		return []step{{share(20), stopHolder}, {share(55), stopHolder}}
	}
	return nil
}

// faults counts the faults among the steps.
func faults(steps []step) int {
	n := 0
	for _, s := range steps {
		if s.act != reviveRedis {
			n++
		}
	}
	return n
}

// saboteur carries a plan out.
type saboteur struct {
	redis *stack.Server
	crew  *crew
	ttl   time.Duration
	rng   *rand.Rand

	injected atomic.Int64
	underWay atomic.Value // string: what the live line says
}

// run does each step when it is due. It returns when all are done, or at the
// first that fails; ctx ends when the run is broken off.
func (s *saboteur) run(ctx context.Context, started time.Time, steps []step) error {
	holder := s.rng.IntN(len(s.crew.nodes))
	for _, step := range steps {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(started.Add(step.at))):
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
			err = s.redis.Restart(ctx)
			s.underWay.Store("")
		case stopHolder:
			holder = (holder + 1) % len(s.crew.nodes)
			err = s.stopHolder(ctx, s.crew.nodes[holder])
			s.underWay.Store("")
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("inject the fault: %w", err)
		}
		if err == nil && step.act != reviveRedis {
			s.injected.Add(1)
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
