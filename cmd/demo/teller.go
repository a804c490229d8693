// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"time"
)

// Of a hundred requests so many are asked for again after their answer, and so many
// by somebody else at the same time: clients time out, queues deliver twice.
const (
	askAgain    = 15
	askTogether = 15
)

// teller serves one client after another: a payment under the locks of both
// accounts, and again under the same id until it is answered.
type teller struct {
	worker
	bank    *bank
	seed    int64
	client  int
	clients int
}

// run works until ctx ends. A request that has no answer by then has none.
func (w *teller) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		answer := w.serve(ctx, paymentOf(w.seed, w.client, n))
		switch roll := w.rng.IntN(100); {
		case roll < askAgain:
			w.same(answer, w.serve(ctx, paymentOf(w.seed, w.client, n)))
		case roll < askAgain+askTogether:
			// Another's, of about now: it may not have begun, be under way, or done.
			w.serve(ctx, paymentOf(w.seed, w.rng.IntN(w.clients), max(0, n+w.rng.IntN(3)-1)))
		}
	}
}

// same checks that a request that was asked for again got its first answer. Without
// a guard it is another one, and the books show it.
func (w *teller) same(first, second []byte) {
	if w.bank.guard != nil && first != nil && second != nil && !bytes.Equal(first, second) {
		w.ledger.count(func(t *tally) { t.Differing++ })
	}
}

// serve asks until there is an answer; nil when the run ended first.
func (w *teller) serve(ctx context.Context, p payment) []byte {
	for ctx.Err() == nil {
		if answer, ok := w.turn(ctx, p); ok {
			return answer
		}
	}
	return nil
}

func (w *teller) turn(ctx context.Context, p payment) (answer []byte, answered bool) {
	asked := now()
	held, err := w.locks.acquireAll(ctx, p.keys())
	if err != nil {
		w.ledger.count(func(t *tally) { t.Attempts++ })
		w.refused(ctx, err)
		return nil, false
	}
	from := now()
	w.ledger.count(func(t *tally) {
		for _, h := range held {
			t.Attempts++
			t.Acquired++
			t.Levels.add(h.level())
		}
	})
	// The client's context, not the lease's: it is the guard that keeps what was lost
	// from being written.
	serving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
	defer cancel()
	var wrote instant
	answer, replayed, err := w.bank.pay(serving, held, p, func(ctx context.Context, tx *sql.Tx, p payment) ([]byte, error) {
		answer, err := w.move(ctx, tx, p, serving.Done())
		wrote = now()
		return answer, err
	})
	switch {
	case err != nil:
		w.failed(err)
		wrote = 0
	case replayed:
		w.ledger.count(func(t *tally) { t.Replayed++ })
		wrote = 0
	default:
		w.ledger.count(func(t *tally) { t.Paid++ })
	}
	w.giveBack(ctx, held, p, tenure{From: from, Wait: from.sub(asked), Wrote: wrote})
	if err != nil && ctx.Err() == nil {
		w.rest(ctx)
	}
	return answer, err == nil
}

// move is the critical section: read, think, write what was computed.
func (w *teller) move(ctx context.Context, tx *sql.Tx, p payment, runEnds <-chan struct{}) ([]byte, error) {
	r, err := balances(ctx, tx, p)
	if err != nil {
		return nil, err
	}
	time.Sleep(think)
	if _, err := w.stop.pass(runEnds); err != nil {
		w.ledger.trouble(err)
	}
	r.From -= p.Cents
	r.To += p.Cents
	return book(ctx, tx, p, r)
}

// giveBack ends the turns, each with its entry.
func (w *teller) giveBack(ctx context.Context, held []turn, p payment, entry tenure) {
	entry.Until = now()
	free, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	for i, h := range held {
		mine := entry
		mine.Product = firstAccount + []int{p.From, p.To}[i]
		mine.Level = h.level()
		if at, ok := h.deadline(); ok {
			mine.Until = min(mine.Until, instantOf(at))
		}
		w.ledger.enter(mine)
	}
	for _, h := range held {
		lost := h.context().Err() != nil
		if err := h.release(free); lost || errors.Is(err, errLost) {
			w.ledger.count(func(t *tally) { t.Lost++ })
		} else if err != nil {
			w.ledger.trouble(err)
		}
	}
}

// firstAccount keeps accounts apart from products in the log of turns.
const firstAccount = 1000
