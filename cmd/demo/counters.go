// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// counters are what the lock's own metrics say of the acquires of a node, for
// comparison with what its workers counted.
type counters struct {
	Acquired, Held, Unavailable, Cancelled int64
	Levels                                 levels
}

// readCounters adds up the series of tierlock_acquire_total.
func readCounters(from prometheus.Gatherer) (c counters, err error) {
	families, err := from.Gather()
	if err != nil {
		return c, err
	}
	for _, family := range families {
		if family.GetName() != "tierlock_acquire_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if err := c.add(m); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

func (c *counters) add(m *dto.Metric) error {
	n := int64(m.GetCounter().GetValue())
	labels := make(map[string]string)
	for _, pair := range m.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	switch labels["outcome"] {
	case "granted":
		c.Acquired += n
		for range n {
			c.Levels.add(level(labels["level"]))
		}
	case "held":
		c.Held += n
	case "unavailable":
		c.Unavailable += n
	case "cancelled":
		c.Cancelled += n
	default:
		if n > 0 {
			return fmt.Errorf("%d acquires ended with %q", n, labels["outcome"])
		}
	}
	return nil
}

func (c counters) plus(other counters) counters {
	c.Acquired += other.Acquired
	c.Held += other.Held
	c.Unavailable += other.Unavailable
	c.Cancelled += other.Cancelled
	c.Levels.Full += other.Levels.Full
	c.Levels.Authority += other.Levels.Authority
	c.Levels.Filter += other.Levels.Filter
	c.Levels.Local += other.Levels.Local
	return c
}

// counters is the same as the workers saw it.
func (t tally) counters() counters {
	return counters{Acquired: t.Acquired, Held: t.Held, Unavailable: t.Unavailable, Cancelled: t.Cancelled, Levels: t.Levels}
}
