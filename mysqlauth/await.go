// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"time"
)

// maxBound is the longest that a call without a deadline takes.
const maxBound = time.Second

// bound is the limit of a call without a deadline: a batch may wait for the one
// before it and then take its own time.
func bound(timeout time.Duration) time.Duration { return min(2*timeout, maxBound) }

// await waits for a lane's answer, the end of ctx, or Close having given up.
// A context without a deadline gets one.
func await[T any](ctx context.Context, a *Authority, op string, answer <-chan T) (T, error) {
	var limit <-chan time.Time
	if _, has := ctx.Deadline(); !has {
		timer := time.NewTimer(a.bound)
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
		return none, a.sessions.unanswered(op)
	case <-a.life.Done():
		return none, classify(op, ErrClosed)
	}
}

// detached runs work whose statements have limits of their own, and returns
// its error or that of ctx, whichever comes first. Close waits for the work.
func (a *Authority) detached(ctx context.Context, op string, work func(context.Context) error) error {
	done := make(chan error, 1)
	if !a.ledger.begin(a.running.Go, func() { done <- work(ctx) }) {
		return classify(op, ErrClosed)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-a.life.Done():
		return classify(op, ErrClosed)
	}
}
