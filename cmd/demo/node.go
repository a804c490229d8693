// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Exit codes of a node, for the parent only.
const (
	nodeDone     = 0
	nodeFailed   = 2
	nodeOrphaned = 3
)

// reportEvery is how often a node says what it counted.
const reportEvery = 100 * time.Millisecond

// nodeMain is a process of the shop. It ends when it is told to, or at once when its
// parent is gone.
func nodeMain(in io.Reader, out io.Writer) int {
	commands := json.NewDecoder(in)
	var s setup
	if err := commands.Decode(&s); err != nil {
		fmt.Fprintln(os.Stderr, "the demo's node mode is for the demo itself:", err)
		return nodeFailed
	}
	n := &node{setup: s, lines: json.NewEncoder(out)}
	if err := n.work(commands); err != nil {
		_ = n.lines.Encode(report{Kind: saysFailed, Error: err.Error()}) // without a parent there is nobody to tell
		return nodeFailed
	}
	return nodeDone
}

type node struct {
	setup  setup
	ledger ledger
	locks  locker // nil until it is open
	addr   string

	metrics counters // at the end

	mu    sync.Mutex // one line at a time
	lines *json.Encoder
}

// say sends what there is to report. Totals are taken and sent in one step, so
// that they never seem to go back.
func (n *node) say(kind string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.ledger.report(kind)
	r.Addr, r.Metrics = n.addr, n.metrics
	if n.locks != nil {
		r.Rung = n.locks.rung()
	}
	return n.lines.Encode(r)
}

func (n *node) work(commands *json.Decoder) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opening, opened := context.WithTimeout(ctx, 30*time.Second)
	defer opened()
	shop, err := openShop(opening, n.setup.MySQL, n.setup.Conns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shop.close()) }()
	metrics := prometheus.NewRegistry()
	locks, err := openLocker(opening, n.setup, shop, metrics)
	if err != nil {
		return err
	}
	n.locks = locks
	front, err := openFront(n.setup.Listen, metrics, locks, &n.ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.close()) }()
	n.addr = front.addr
	stop := &selfStop{ttl: n.setup.TTL, say: n.say}
	started := make(chan struct{})
	go obey(commands, map[string]func(){
		doStart: sync.OnceFunc(func() { close(started) }),
		doPause: stop.arm,
		doStop:  cancel,
	})
	if err := n.say(saysReady); err != nil {
		return err
	}
	select {
	case <-started:
	case <-ctx.Done(): // broken off before it began
	}
	n.sell(ctx, locks, shop, stop)

	closing, closed := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer closed()
	if err := locks.close(closing); err != nil {
		n.ledger.trouble(fmt.Errorf("close the lock: %w", err))
	}
	if n.metrics, err = readCounters(metrics); err != nil {
		n.ledger.trouble(fmt.Errorf("read the metrics: %w", err))
	}
	return n.say(saysDone)
}

// obey runs until the parent closes the pipe, which it does by dying: a node
// that is told to stop ends before that.
func obey(commands *json.Decoder, do map[string]func()) {
	for {
		var c command
		if err := commands.Decode(&c); err != nil {
			os.Exit(nodeOrphaned)
		}
		if f := do[c.Do]; f != nil {
			f()
		}
	}
}

// sell runs the workers until ctx ends, and reports meanwhile.
func (n *node) sell(ctx context.Context, locks locker, shop *shop, stop *selfStop) {
	var workers sync.WaitGroup
	bank := &bank{db: shop.db}
	if l, ok := locks.(*tierlock); ok {
		bank.guard = l.guard
	}
	for i := range n.setup.Workers {
		w := worker{
			locks: locks, shop: shop, ledger: &n.ledger, stop: stop,
			rng: rand.New(rand.NewPCG(uint64(n.setup.Seed), uint64(n.setup.Node)<<32|uint64(i))),
		}
		if n.setup.pays(i) {
			client := n.setup.Node*n.setup.Workers + i
			t := &teller{worker: w, bank: bank, seed: n.setup.Seed, client: client, clients: n.setup.Nodes * n.setup.Workers}
			workers.Go(func() { t.run(ctx) })
			continue
		}
		workers.Go(func() { w.run(ctx) })
	}
	finished := make(chan struct{})
	go func() {
		workers.Wait()
		close(finished)
	}()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
			if err := n.say(saysProgress); err != nil {
				os.Exit(nodeOrphaned)
			}
		}
	}
}
