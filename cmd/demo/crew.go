// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// crew is all nodes of a run.
type crew struct{ nodes []*process }

// hire starts the nodes and waits until all of them are ready.
func hire(ctx context.Context, s setup, nodes int, stderr io.Writer) (*crew, error) {
	c := &crew{}
	for i := range nodes {
		s.Node = i
		if i > 0 {
			s.Listen = "" // one address is for one node
		}
		p, err := startProcess(s, stderr)
		if p != nil && p.cmd.Process != nil {
			c.nodes = append(c.nodes, p)
		}
		if err != nil {
			c.dismiss()
			return nil, err
		}
	}
	for _, p := range c.nodes {
		select {
		case <-p.ready:
		case <-p.gone:
			c.dismiss()
			return nil, p.failure()
		case <-ctx.Done():
			c.dismiss()
			return nil, ctx.Err()
		}
	}
	return c, nil
}

// tell tells all nodes.
func (c *crew) tell(do string) error {
	var errs []error
	for _, p := range c.nodes {
		errs = append(errs, p.tell(do))
	}
	return errors.Join(errs...)
}

// crashed returns a channel that receives the reason of the first node that
// ends while ctx lives.
func (c *crew) crashed(ctx context.Context) <-chan error {
	first := make(chan error, len(c.nodes))
	for _, p := range c.nodes {
		go func() {
			select {
			case <-p.gone:
				first <- p.failure()
			case <-ctx.Done():
			}
		}()
	}
	return first
}

// finish tells the nodes to end and waits until they have, for at most limit. A
// node may be stopped, or about to stop itself, so it is let go on until it ends.
func (c *crew) finish(limit time.Duration) error {
	defer c.dismiss()
	errs := []error{c.tell(doStop)}
	timeout := time.After(limit)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for _, p := range c.nodes {
		for ended := false; !ended; {
			p.cont()
			select {
			case <-p.gone:
				errs = append(errs, p.failure())
				ended = true
			case <-again.C:
			case <-timeout:
				return errors.Join(append(errs, fmt.Errorf("node %d did not end within %v", p.number, limit))...)
			}
		}
	}
	return errors.Join(errs...)
}

// dismiss kills what still runs.
func (c *crew) dismiss() {
	for _, p := range c.nodes {
		p.kill()
	}
}

// counted adds up what the nodes have reported so far.
func (c *crew) counted() tally {
	var sum tally
	for _, p := range c.nodes {
		sum = sum.plus(p.counted())
	}
	return sum
}

// metrics adds up what the lock's own metrics said when the nodes ended.
func (c *crew) metrics() counters {
	var sum counters
	for _, p := range c.nodes {
		sum = sum.plus(p.metrics)
	}
	return sum
}

// tenures returns the logs of the nodes, once they have ended.
func (c *crew) tenures() [][]tenure {
	logs := make([][]tenure, len(c.nodes))
	for i, p := range c.nodes {
		logs[i] = p.tenures
	}
	return logs
}
