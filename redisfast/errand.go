// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/tier/driver"
)

// errand is one run of a script about one mark. It shares a pipeline with
// others, and its caller may leave before there is an answer.
type errand struct {
	op   *operation
	id   markID
	key  string // as Redis has it
	wake bool
	// What the script is given besides the key: its text or, of a deletion that
	// wakes, a channel; and a time to live in milliseconds.
	value, channel string
	ttl            int64
	args           [6]any
	state          atomic.Int32 // callPending, callAnswered or callLeft
	answer         chan struct{}
	cmd            *redis.Cmd

	reply driver.MarkState
	err   error
}

// operation is what errands of one script have in common.
type operation struct {
	name   string
	script script
	// begin runs before the request is queued, in the caller's goroutine.
	begin func(f *Filter, e *errand)
	// end is told once how the request ended, whether or not its caller had left
	// by then. It runs before the caller gets the answer, and must not block.
	end func(f *Filter, e *errand, left bool)
	// lapses says that the request need not be sent when its caller has left.
	lapses bool
}

var (
	marking = &operation{name: "mark", script: markScript, lapses: true, end: func(f *Filter, e *errand, left bool) {
		// Even a refused connection is no proof that no mark was planted: the
		// client may have sent the request before, and tried again.
		if e.err != nil || e.reply.Ours && left {
			f.undos.mark(e.id, e.err)
		}
	}}
	extending   = &operation{name: "extend", script: extendScript, lapses: true}
	overwriting = &operation{
		name: "overwrite", script: overwriteScript,
		begin: func(f *Filter, e *errand) { f.undos.planting(e.id) },
		end:   func(f *Filter, e *errand, _ bool) { f.undos.planted(e.err, e.id) },
	}
	clearing = &operation{
		name: "clear", script: clearScript,
		begin: func(f *Filter, e *errand) { f.undos.clearing(e.id, e.wake) },
		end: func(f *Filter, e *errand, _ bool) {
			if e.err != nil {
				f.undos.clear(e.id, e.wake, e.err)
			}
		},
	}
)

var errands = sync.Pool{New: func() any { return &errand{answer: make(chan struct{}, 1)} }}

// send queues an errand and returns its answer, or earlier: when ctx ends with
// the caller's error, and at the filter's timeout with an unknown outcome,
// whatever the client is doing.
//
// A request that was sent is not cancelled when its caller leaves. It ends by
// itself within the timeout, mostly with an answer, and an answer leaves less to
// undo than a connection that was cut.
func (f *Filter) send(ctx context.Context, op *operation, e *errand) (driver.MarkState, error) {
	if err := ctx.Err(); err != nil {
		return driver.MarkState{}, callerFault(op.name, err)
	}
	if !f.enter() {
		return driver.MarkState{}, fault(op.name, ErrClosed)
	}
	e.op, e.key = op, f.markKey(e.id.key)
	if op.begin != nil {
		op.begin(f, e)
	}
	timer := f.timers.get(f.timeout)
	defer f.timers.put(timer)
	f.batches.add(e)
	var early error
	select {
	case <-e.answer:
		return e.take()
	case <-ctx.Done():
		early = callerFault(op.name, ctx.Err())
	case <-timer.C:
		early = fault(op.name, fmt.Errorf("%w (%v)", ErrTimeout, f.timeout))
	}
	if e.state.CompareAndSwap(callPending, callLeft) {
		return driver.MarkState{}, early
	}
	<-e.answer // it came at the same moment
	return e.take()
}

// take returns the answer of an errand that is over, and the errand to its pool.
func (e *errand) take() (driver.MarkState, error) {
	name, reply, err := e.op.name, e.reply, e.err
	answer := e.answer
	*e = errand{answer: answer}
	errands.Put(e)
	return wrap(name, reply, err)
}

// done ends an errand with what its command answered.
func (e *errand) done(f *Filter) {
	e.reply, e.err = e.read()
	e.over(f)
}

func (e *errand) over(f *Filter) {
	left := !e.state.CompareAndSwap(callPending, callAnswered)
	if e.op.end != nil {
		e.op.end(f, e, left)
	}
	if !left {
		e.answer <- struct{}{}
	}
	f.leave()
}

func (e *errand) read() (driver.MarkState, error) {
	if e.op == clearing {
		return driver.MarkState{}, e.cmd.Err()
	}
	return stateOf(e.cmd)
}

// unsent reports that nobody waits for an errand that need not be sent then, and
// ends it.
func (e *errand) unsent(f *Filter) bool {
	if !e.op.lapses || e.state.Load() != callLeft {
		return false
	}
	e.cmd = nil
	f.leave()
	return true
}

// timers are reused: one bounds every call.
type timers struct{ pool sync.Pool }

func (p *timers) get(d time.Duration) *time.Timer {
	timer, _ := p.pool.Get().(*time.Timer)
	if timer == nil {
		return time.NewTimer(d)
	}
	timer.Reset(d)
	return timer
}

func (p *timers) put(timer *time.Timer) {
	timer.Stop()
	p.pool.Put(timer)
}
