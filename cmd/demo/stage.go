// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// finishLimit is how long nodes may take to finish what they hold.
const finishLimit = 15 * time.Second

// stage is one run of the shop, from the first delivery to the books.
type stage struct {
	options
	out    io.Writer // what people read
	stderr io.Writer // what nodes complain to
	opened time.Time
}

func (s *stage) say(line string) {
	fmt.Fprintf(s.out, "%5.1f s  %s\n", time.Since(s.opened).Seconds(), line)
}

// play builds the shop anew, opens it, and reads its books when it has closed.
// ctx ends when somebody interrupts: before the start that is an error, after it
// there is a verdict on what ran.
func (s *stage) play(ctx context.Context, servers *servers) (_ outcome, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("interrupted before there was anything to judge: %w", err)
		}
	}()
	s.say("filling the shop...")
	shop, err := openShop(ctx, servers.adminDSN, 2)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, shop.close()) }()
	if err := shop.build(ctx); err != nil {
		return outcome{}, err
	}
	if err := (&bank{db: shop.db}).build(ctx); err != nil {
		return outcome{}, err
	}
	if s.lock == lockTierlock {
		if err := ensureTables(ctx, shop.db); err != nil {
			return outcome{}, err
		}
		if _, err := shop.db.ExecContext(ctx, "DELETE FROM tierlock_demo_idempotency"); err != nil { // of the run before
			return outcome{}, err
		}
	}
	document, err := s.readConfig()
	if err != nil {
		return outcome{}, err
	}
	s.say(fmt.Sprintf("starting %d nodes...", s.nodes))
	crew, err := hire(ctx, setup{
		Nodes: s.nodes, Sells: s.sells(), Pays: s.pays(), Listen: s.listen,
		Lock: s.lock, Guard: s.guarded(), Redis: servers.redisURL, MySQL: servers.dsn,
		Workers: s.workers, Conns: s.conns(), TTL: s.ttl, Seed: s.seed, Config: document,
	}, s.nodes, s.stderr)
	if err != nil {
		return outcome{}, err
	}
	defer crew.dismiss()
	return s.run(ctx, servers, shop, crew)
}

// run is the part that is measured.
func (s *stage) run(ctx context.Context, servers *servers, shop *shop, crew *crew) (outcome, error) {
	s.say("open: " + s.describe())
	if s.lock == lockTierlock {
		s.say(fmt.Sprintf("node 0 serves http://%s/metrics, /healthz and /readyz%s", crew.nodes[0].serves(), s.takesOrders()))
	}
	watch, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // an interrupt is no crash
	defer unwatch()
	crashed := crew.crashed(watch)
	steps := plan(s.options)
	sabotage := &saboteur{
		redis: servers.redis, mysql: servers.sql, crew: crew, ttl: s.ttl,
		rng: rand.New(rand.NewPCG(uint64(s.seed), 0)),
	}
	begin, started := now(), time.Now()
	if err := crew.tell(doStart); err != nil {
		return outcome{}, err
	}
	spoiled := make(chan error, 1)
	go func() { spoiled <- sabotage.run(ctx, started, steps) }()

	live := &live{out: s.out, shop: shop, crew: crew, sabotage: sabotage}
	if err := live.until(ctx, started.Add(s.duration), crashed); err != nil {
		return outcome{}, err
	}
	// The workers work on while the last fault is made good.
	if err := <-spoiled; err != nil {
		return outcome{}, err
	}
	end := now()
	unwatch()
	if err := crew.finish(finishLimit); err != nil {
		return outcome{}, err
	}
	// Interrupted or not, there is a verdict.
	books, bank, err := s.audit(context.WithoutCancel(ctx), shop)
	if err != nil {
		return outcome{}, err
	}
	return outcome{
		options: s.options, interrupted: ctx.Err() != nil,
		planned: faults(steps), injected: int(sabotage.injected.Load()), outages: sabotage.outages,
		begin: begin, end: end,
		tally: crew.counted(), metrics: crew.metrics(), logs: crew.tenures(), books: books, bank: bank,
	}, nil
}

func (s *stage) audit(ctx context.Context, shop *shop) (b books, a accountsBooks, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if b, err = shop.audit(ctx); err != nil {
		return b, a, err
	}
	a, err = (&bank{db: shop.db}).audit(ctx)
	return b, a, err
}
