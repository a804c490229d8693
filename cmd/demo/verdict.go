// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// maxSilence is the longest a shop with a working database may sell nothing.
const maxSilence = 2 * time.Second

// finding is one invariant and what the run said about it.
type finding struct {
	held    bool
	safety  bool // what is sold is right, and not only: something is sold
	promise string
	detail  string
}

// findings judges a run. The verdict is ok when all of them held.
func (o outcome) findings() []finding {
	overlaps := o.overlaps()
	t := o.tally
	accounted := t.Acquired + t.Held + t.Unavailable + t.Cancelled
	silence := o.silence()
	all := []finding{
		{
			overlaps == 0, true, "one holder at a time",
			fmt.Sprintf("%d turns, %d of them began while another holder's turn went on", t.Acquired, overlaps),
		},
		{
			o.books.orders+o.bank.payments >= t.Sold+t.Paid, true, "what was committed is in the books",
			fmt.Sprintf("workers saw %d commits, the books have %d", t.Sold+t.Paid, o.books.orders+o.bank.payments),
		},
		{
			t.Attempts == accounted, false, "every attempt has an answer",
			fmt.Sprintf("%d attempts: %d acquired, %d held by others, %d unavailable, %d cancelled at the end",
				t.Attempts, t.Acquired, t.Held, t.Unavailable, t.Cancelled),
		},
		{
			silence <= maxSilence && (t.writes() > 0 || o.interrupted), false, "the shop keeps selling",
			fmt.Sprintf("%d writes, the longest time without one was %v", t.writes(), silence.Round(time.Millisecond)),
		},
	}
	if o.sells() {
		all = append(all, finding{
			o.books.oversold == 0, true, "nothing is sold that is not there",
			fmt.Sprintf("%d orders, %d of them for goods that the stock does not account for", o.books.orders, o.books.oversold),
		})
	}
	if o.pays() {
		all = append(all, o.bankFindings()...)
	}
	if o.lock == lockTierlock {
		all = append(all, finding{
			o.metrics == t.counters() || t.Served > 0, false, "the metrics say the same",
			fmt.Sprintf("acquires by the metrics: %+v; requests of others, which are among them: %d", o.metrics, t.Served),
		})
	}
	if o.interrupted {
		return all // what was planned after the interruption is nobody's fault
	}
	return append(all, o.faultFindings()...)
}

// bankFindings judge what became of the money.
func (o outcome) bankFindings() []finding {
	b, t := o.bank, o.tally
	all := []finding{
		{
			b.double == 0, true, "nobody is charged twice",
			fmt.Sprintf("%d payments, %d requests with more than one", b.payments, b.double),
		},
		{
			b.money == 0 && b.astray == 0, true, "money is neither made nor lost",
			fmt.Sprintf("%d cents more than at the start, %d accounts that the ledger does not account for", b.money, b.astray),
		},
	}
	if o.guarded() {
		all = append(all, finding{
			(t.Replayed > 0 || o.interrupted) && t.Differing == 0, true, "who asks again gets the first answer",
			fmt.Sprintf("%d requests were answered from the record, %d of them differently", t.Replayed, t.Differing),
		})
	}
	return all
}

// faultFindings judges what the fault should have left behind: without it, the
// run has shown nothing.
func (o outcome) faultFindings() []finding {
	if o.fault == faultNone {
		return nil
	}
	all := []finding{{
		o.injected == o.planned, false, "the faults came as planned",
		fmt.Sprintf("%d of %d", o.injected, o.planned),
	}}
	switch {
	case o.fault == faultHolderPause && o.guarded():
		all = append(all, finding{
			o.tally.Rejected > 0, true, "late writers are refused",
			fmt.Sprintf("the lease row refused %d writes", o.tally.Rejected),
		})
	case (o.fault == faultMySQLPause || o.fault == faultMySQLKill) && o.lock == lockTierlock:
		all = append(all, finding{
			(o.tally.Levels.Local > 0 || !o.sells()) && o.tally.Unavailable > 0 && o.fullAtEnd(), false, "each rung was seen, and left",
			fmt.Sprintf("%d turns within a process alone, %d refused; the last ones on both tiers: %t",
				o.tally.Levels.Local, o.tally.Unavailable, o.fullAtEnd()),
		})
	case o.fault == faultRedisKill && o.lock == lockTierlock:
		all = append(all, finding{
			o.tally.Levels.Authority > 0 && o.fullAtEnd(), false, "MySQL carries on without Redis",
			fmt.Sprintf("%d turns on both tiers, %d on MySQL alone; the last ones on both: %t",
				o.tally.Levels.Full, o.tally.Levels.Authority, o.fullAtEnd()),
		})
	}
	return all
}
