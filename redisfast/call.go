// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// Who has the answer of a call: the caller takes it, or it left before there
// was one. Whoever moves first from pending decides.
const (
	callPending = iota
	callAnswered
	callLeft
)

// exchange is one request and its answer.
type exchange[T any] struct {
	op string
	// begin, if any, runs before the request is sent, in the caller's goroutine.
	begin func()
	run   func(context.Context) (T, error)
	// end, if any, is told once how run ended and whether the caller had left by
	// then. It runs before the caller gets the answer, and must not block.
	end func(answer T, err error, left bool)
}

// call runs an exchange in a goroutine of its own and returns its answer, or
// earlier: when ctx ends with the caller's error, and at the filter's timeout
// with an unknown outcome, whatever the client is doing.
//
// The exchange is not cancelled when its caller leaves. It ends by itself within
// the timeout, mostly with an answer, and an answer leaves less to undo than a
// connection that was cut.
func call[T any](ctx context.Context, f *Filter, x exchange[T]) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, callerFault(x.op, err)
	}
	if !f.enter() {
		return none, fault(x.op, ErrClosed)
	}
	if x.begin != nil {
		x.begin()
	}

	began := time.Now()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.timeout)
	// A client that does not keep deadlines must not hide that there was no answer.
	inTime := context.AfterFunc(bounded, func() { f.observe(x.op, began, ErrTimeout) })
	type result struct {
		answer T
		err    error
	}
	var state atomic.Int32
	answered := make(chan result, 1)
	go func() {
		defer f.leave()
		defer cancel()
		answer, err := x.run(bounded)
		if inTime() {
			f.observe(x.op, began, err)
		}
		left := !state.CompareAndSwap(callPending, callAnswered)
		if x.end != nil {
			x.end(answer, err, left)
		}
		if !left {
			answered <- result{answer, err}
		}
	}()

	var early error
	select {
	case r := <-answered:
		return wrap(x.op, r.answer, r.err)
	case <-ctx.Done():
		early = callerFault(x.op, ctx.Err())
	case <-bounded.Done():
		early = fault(x.op, fmt.Errorf("%w (%v)", ErrTimeout, f.timeout))
	}
	if state.CompareAndSwap(callPending, callLeft) {
		return none, early
	}
	r := <-answered // it came at the same moment
	return wrap(x.op, r.answer, r.err)
}

// observe tells of an exchange that has ended.
func (f *Filter) observe(op string, began time.Time, err error) {
	tell := f.observer.Load()
	if tell == nil {
		return
	}
	c := driver.Call{Op: op, Took: time.Since(began)}
	if err != nil {
		c.Err = fault(op, err)
	}
	(*tell)(c)
}

func wrap[T any](op string, answer T, err error) (T, error) {
	if err != nil {
		return answer, fault(op, err)
	}
	return answer, nil
}
