// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

func init() { roles["all"] = runAll }

const (
	allKeys = 10
	// allPatience is a wait that nobody comes to the end of, unless two wait for
	// each other: then their keys lie idle for most of it.
	allPatience = 20 * time.Second
	// allShort is a wait that many come to the end of.
	allShort = 500 * time.Millisecond
	// allFree is what a failed call has to free its keys (P5): a second, and the
	// limit of the statement that is out.
	allFree = time.Second + nodeTimeout
)

// Four processes of sixteen workers take random pairs of ten keys in random
// order: no deadlock, nothing past its wait, all or nothing, nothing left.
func TestAcquireAll_manyProcesses_P10(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		t.Run(fmt.Sprintf("cancels=%t", cancels), func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
				if mysql := s.Database.Server().Engine() == stack.MySQL; !soak && mysql == cancels {
					return // in make test each engine has one of the two
				}
				acquireAllOverProcesses(t, s, cancels)
			})
		})
	}
}

func acquireAllOverProcesses(t *testing.T, s *tiers.Tiers, cancels bool) {
	t.Helper()
	rounds, lasting := 1, 2*time.Second
	if soak {
		rounds, lasting = 4, 2500*time.Millisecond
	}
	createLedger(t, s)
	heard := newSpans()
	var nodes []*process
	for i := range 4 {
		nodes = append(nodes, startProcess(t, "all", nodeSettings(s, i, map[string]string{
			"cancels": strconv.FormatBool(cancels), "seed": "1",
			"rounds": strconv.Itoa(rounds), "lasting": lasting.String(),
		}), heard.hear))
	}
	for _, n := range nodes {
		select {
		case <-n.done:
		case <-time.After(2 * time.Minute):
			t.Error("a process did not end")
		}
		if err := n.end(); err != nil {
			t.Errorf("a process ended with %v", err)
		}
	}
	heard.check(t)
	checkLedger(t, s)
	if !cancels {
		idle := longestIdle(t, s, allPatience)
		t.Logf("no key was idle for more than %v", idle)
		if idle > allPatience/2 {
			t.Errorf("a key that was wanted was idle for %v: a deadlock", idle)
		}
	}
	if cancels && (heard.said["cancelled"] < 50 || heard.said["held"] < 10) {
		t.Error("too few calls failed")
	}
	if n := s.Held(t); n != 0 {
		t.Errorf("%d rows are held when all is over", n)
	}
	if n := s.Marks(t); n != 0 {
		t.Errorf("%d marks stand when all is over", n)
	}
}

// allNode is a process of it.
type allNode struct {
	locker  *tier.Locker
	ledger  *ledger
	pulse   *pulse
	wait    time.Duration
	cancels bool
}

func runAll() int {
	n := &allNode{wait: allPatience, cancels: setting("cancels") == "true"}
	if n.cancels {
		n.wait = allShort
	}
	var err error
	if n.locker, _, err = openNode(tier.WithTTL(5*time.Second), tier.WithWait(n.wait)); err != nil {
		return wrong(err)
	}
	if n.ledger, err = openLedger(); err != nil {
		return wrong(err)
	}
	rounds, _ := strconv.Atoi(setting("rounds"))
	lasting, _ := time.ParseDuration(setting("lasting"))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pulse, stopped := startPulse(ctx)
	n.pulse = pulse
	for round := range rounds {
		n.round(round, lasting)
		n.quiet()
	}
	stop()
	<-stopped
	if err := errors.Join(closeNode(n.locker), n.ledger.close()); err != nil {
		return wrong(fmt.Errorf("close: %w", err))
	}
	if err := goleak.Find(); err != nil {
		return wrong(err)
	}
	return 0
}

// round lets the workers work for a while, and ends with the last of their calls.
func (n *allNode) round(round int, lasting time.Duration) {
	var workers sync.WaitGroup
	end := time.Now().Add(lasting)
	for i := range 16 {
		workers.Go(func() {
			for rng := nodeRand(round<<8 | i); time.Now().Before(end); {
				first, step := rng.IntN(allKeys), 1+rng.IntN(allKeys-1)
				cancelAfter, cancelled := time.Duration(rng.IntN(60_000))*time.Microsecond, rng.IntN(2) == 0
				n.turn([]string{allKey(first), allKey(first + step)}, cancelAfter, n.cancels && cancelled)
			}
		})
	}
	workers.Wait()
}

func allKey(i int) string { return fmt.Sprintf("account-%d", i%allKeys) }

// turn takes two keys, or is refused.
func (n *allNode) turn(keys []string, cancelAfter time.Duration, cancelled bool) {
	ctx, bound := context.Background(), n.wait
	if cancelled {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cancelAfter)
		defer cancel()
		bound = cancelAfter
	}
	asked := time.Now()
	leases, err := n.locker.AcquireAll(ctx, keys...)
	took, from := time.Since(asked), now()
	if took > bound+100*time.Millisecond {
		if late := n.pulse.since(asked.Add(bound)); took-late > bound+100*time.Millisecond {
			wrong(fmt.Errorf("AcquireAll took %v, its bound is %v, the process was kept from running for %v: %w", took, bound, late, err))
		}
	}
	if err != nil {
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			say("cancelled")
		case errors.Is(err, tier.ErrHeld):
			say("held")
			n.noteRefused(err)
		case errors.Is(err, tier.ErrUnavailable): // the servers are as starved as we are
			say("unanswered")
		default:
			wrong(fmt.Errorf("AcquireAll: %w", err))
		}
		if leases != nil {
			wrong(fmt.Errorf("AcquireAll returned %d leases and %w", len(leases), err))
		}
		return
	}
	if len(leases) != 2 || leases[0].Key() != keys[0] || leases[1].Key() != keys[1] {
		wrong(fmt.Errorf("AcquireAll(%q) returned %d leases", keys, len(leases)))
	}
	if err := n.ledger.note(comes, leases...); err != nil {
		wrong(err)
	}
	time.Sleep(time.Millisecond)
	if err := n.ledger.note(goes, leases...); err != nil {
		wrong(err)
	}
	until := now()
	for _, lease := range leases {
		if err := lease.Err(); err != nil {
			wrong(fmt.Errorf("lost after %v: %w", time.Duration(until-from), err))
		}
		saySpan(lease, from, until)
	}
	if err := leases.Release(context.Background()); err != nil {
		wrong(fmt.Errorf("release: %w", err))
	}
}

func (n *allNode) noteRefused(err error) {
	in, ok := errors.AsType[*tier.Error](err)
	if !ok {
		wrong(fmt.Errorf("an error without a key: %w", err))
		return
	}
	if err := n.ledger.noteRefused(in.Key); err != nil {
		wrong(err)
	}
}

// quiet looks, when no call of this process is out any more and its failed ones
// have had their time, whether it holds a key.
func (n *allNode) quiet() {
	began := time.Now()
	time.Sleep(allFree)
	time.Sleep(n.pulse.since(began))
	held, err := n.ledger.heldBy(nodeName())
	if err != nil {
		wrong(err)
	}
	if held != 0 {
		wrong(fmt.Errorf("%d keys are held by a process in which nobody has them", held))
	}
}
