// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
)

// describe says what is tried.
func (o options) describe() string {
	return fmt.Sprintf("%d processes of %d workers %s for %v; lock: %s; fault: %s",
		o.nodes, o.workers, o.scenarioInWords(), o.duration, o.lockInWords(), o.faultInWords())
}

func (o options) scenarioInWords() string {
	sell := fmt.Sprintf("sell %d products", products)
	pay := fmt.Sprintf("move money between %d accounts", accounts)
	switch o.scenario {
	case scenarioPayment:
		return pay
	case scenarioAll:
		return sell + " and " + pay
	}
	return sell
}

// takesOrders says what else the first node serves.
func (o options) takesOrders() string {
	if o.guarded() {
		return ", and takes POST /payments and /orders"
	}
	return ""
}

func (o options) lockInWords() string {
	switch {
	case o.lock == lockNone:
		return "none"
	case o.lock == lockRedis:
		return "Redis alone"
	case !o.guard:
		return "tierlock, but writes not guarded"
	}
	return "tierlock"
}

func (o options) faultInWords() string {
	switch o.fault {
	case faultRedisFlush:
		return "Redis forgets everything every 500 ms"
	case faultRedisKill:
		return "Redis is killed and comes back empty"
	case faultMySQLPause:
		return "MySQL falls silent for a while"
	case faultMySQLKill:
		return "MySQL is killed and comes back"
	case faultAll:
		return "all of them, one after another"
	case faultHolderPause:
		return "twice a holder freezes past its lease, then writes"
	}
	return "none"
}

// narrate prints the verdict for people.
func narrate(w io.Writer, o outcome, findings []finding) {
	fmt.Fprintf(w, "\nTried: %s.\n", o.describe())
	if o.interrupted {
		fmt.Fprintf(w, "Interrupted after %.1f s.\n", o.seconds())
	}
	for _, f := range findings {
		word := "held "
		if !f.held {
			word = "BROKE"
		}
		fmt.Fprintf(w, "  %s  %-36s %s\n", word, f.promise, f.detail)
	}
	if o.tally.Lost > 0 || o.tally.Failed > 0 {
		fmt.Fprintf(w, "  Besides: %d turns were lost before their end, and %d reads or writes given up.\n", o.tally.Lost, o.tally.Failed)
	}
	if o.tally.Trouble != "" {
		fmt.Fprintf(w, "  First trouble: %s\n", o.tally.Trouble)
	}
	fmt.Fprintf(w, "%s\n", o.conclusion(findings))
}

// conclusion says in a sentence what to make of it.
func (o outcome) conclusion(findings []finding) string {
	held, sound := true, true
	for _, f := range findings {
		held = held && f.held
		sound = sound && (f.held || !f.safety)
	}
	switch {
	case !held && o.lock == lockRedis && o.pays():
		return "NOT OK, as expected of a lock alone: whoever asked twice was charged twice."
	case held && o.lock == lockRedis && o.fault == faultNone:
		return "OK: Redis alone holds as long as nothing goes wrong; try -fault redis-flush."
	case held:
		return "OK: every invariant held."
	case o.lock == lockNone:
		return "NOT OK, as expected without a lock: this is what the others are measured against."
	case o.lock == lockRedis && o.fault != faultNone && !sound:
		return "NOT OK, as expected of Redis alone: a mark that vanishes, or runs out under a frozen holder, keeps nobody out."
	case o.lock == lockRedis && o.fault == faultRedisKill:
		return "NOT OK, as expected of Redis alone: without Redis nobody could sell."
	case o.lock == lockTierlock && !o.guard && o.pays():
		return "NOT OK, as expected without the guard: the lock was right, and whoever asked twice was charged twice."
	case o.lock == lockTierlock && !o.guard && o.fault == faultHolderPause:
		return "NOT OK, as expected without the guard: the lock was right, and the frozen holder wrote all the same."
	}
	return "NOT OK: an invariant broke."
}
