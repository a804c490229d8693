// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// await waits for a lane's answer, the end of ctx, or Close having given up.
// A context without a deadline gets one: a batch may wait for the one before
// it and then take its own time.
func await[T any](ctx context.Context, a *Authority, op string, answer <-chan T) (T, error) {
	var limit <-chan time.Time
	if _, has := ctx.Deadline(); !has {
		timer := time.NewTimer(2 * a.timeout)
		defer timer.Stop()
		limit = timer.C
	}
	var none T
	select {
	case got := <-answer:
		return got, nil
	case <-ctx.Done():
		select {
		case got := <-answer: // both were ready
			return got, nil
		default:
			return none, ctx.Err()
		}
	case <-limit:
		return none, &driver.Error{Tier: "mysql", Op: op, Class: driver.ClassUnknown, Err: errNoAnswer}
	case <-a.life.Done():
		return none, classify(op, ErrClosed)
	}
}

// detached runs work whose statements have limits of their own, and returns
// its error or that of ctx, whichever comes first. Close waits for the work.
func (a *Authority) detached(ctx context.Context, op string, work func(context.Context) error) error {
	if !a.ledger.enter() {
		return classify(op, ErrClosed)
	}
	done := make(chan error, 1)
	a.running.Go(func() {
		defer a.ledger.leave()
		done <- work(ctx)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-a.life.Done():
		return classify(op, ErrClosed)
	}
}
