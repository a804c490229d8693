// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// think is what a worker does between the read and the write.
	think = time.Millisecond
	// patience bounds what a worker does outside its turn's context.
	patience = 3 * time.Second
)

// worker sells one product after another, each under the product's lock.
type worker struct {
	locks  locker
	shop   *shop
	ledger *ledger
	stop   *selfStop
	rng    *rand.Rand
}

// run works until ctx ends; what is held then is finished.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.turn(ctx, w.rng.IntN(products))
	}
}

func (w *worker) turn(ctx context.Context, product int) {
	w.ledger.count(func(t *tally) { t.Attempts++ })
	asked := now()
	held, err := w.locks.acquire(ctx, lockKey(product))
	if err != nil {
		w.refused(ctx, err)
		return
	}
	entry := tenure{Product: product, Level: held.level(), From: now()}
	entry.Wait = entry.From.sub(asked)
	w.ledger.count(func(t *tally) {
		t.Acquired++
		t.Levels.add(entry.Level)
	})

	entry.Wrote, err = w.serve(held, product, ctx.Done())
	lost := held.context().Err() != nil
	if !errors.Is(err, errStale) && !errors.Is(err, errUnfenced) && !lost && err != nil {
		w.ledger.trouble(err)
	}
	entry.Until = now()
	if at, ok := held.deadline(); ok {
		entry.Until = min(entry.Until, instantOf(at))
	}
	w.ledger.enter(entry)

	// Not the turn's context, which may have ended; the key is to be freed all the same.
	free, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err = held.release(free)
	if lost || errors.Is(err, errLost) {
		w.ledger.count(func(t *tally) { t.Lost++ })
	} else if err != nil {
		w.ledger.trouble(err)
	}
}

// refused files an acquire that granted nothing.
func (w *worker) refused(ctx context.Context, err error) {
	switch {
	case errors.Is(err, errHeld):
		w.ledger.count(func(t *tally) { t.Held++ })
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		w.ledger.count(func(t *tally) { t.Cancelled++ })
	default:
		w.ledger.count(func(t *tally) { t.Unavailable++ })
		if !errors.Is(err, errUnavailable) {
			w.ledger.trouble(err)
		}
		w.rest(ctx) // a lock that refuses at once must not make the workers spin
	}
}

// rest is a moment before the next try.
func (w *worker) rest(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20*time.Millisecond + time.Duration(w.rng.Int64N(int64(60*time.Millisecond)))):
	}
}

// serve is the critical section: read, think, write what was computed. It
// returns the instant before the COMMIT of an accepted write, or 0. The run's end
// does not end it: what is held is finished.
func (w *worker) serve(held turn, product int, runEnds <-chan struct{}) (instant, error) {
	// A sane holder passes its turn's context on: what it has lost, it does not write.
	ctx, cancel := context.WithTimeout(held.context(), patience)
	defer cancel()
	shelf, err := w.shop.read(ctx, product)
	if err != nil {
		w.failed(err)
		return 0, err
	}
	time.Sleep(think)

	sold := shelf.stock > 0
	if sold {
		shelf.stock--
		stopped, err := w.stop.pass(runEnds)
		if err != nil {
			w.ledger.trouble(err)
		}
		if stopped {
			// This holder does everything wrong: it writes late, and not on its turn's context.
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			ctx = late
		}
	} else {
		shelf.stock += delivery
		shelf.putIn += delivery
	}

	at, err := w.shop.save(ctx, shelf, sold, held.confirm)
	if err != nil {
		w.failed(err)
		return 0, err
	}
	w.ledger.count(func(t *tally) {
		if sold {
			t.Sold++
		} else {
			t.Restocked++
		}
	})
	return at, nil
}

// failed files a write, or the read before it, that did not happen.
func (w *worker) failed(err error) {
	w.ledger.count(func(t *tally) {
		if errors.Is(err, errStale) {
			t.Rejected++
		} else {
			t.Failed++
		}
	})
}
