// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

var errDown = errors.New("tiertest: taken down")

// Outage is the switch of an in-memory driver. The zero value is up.
type Outage struct {
	tier  string
	limit time.Duration // of a call to a silent server

	switching sync.Mutex
	down      bool
	silent    chan struct{} // closed by Up; nil unless silent
	lose      int           // replies still to be lost
	observer  driver.Observer
}

// Observe implements both contracts.
func (o *Outage) Observe(observer driver.Observer) {
	o.switching.Lock()
	defer o.switching.Unlock()
	o.observer = observer
}

// Ping implements both contracts.
func (o *Outage) Ping(ctx context.Context) error { return o.enter(ctx, "ping") }

// Down makes every call fail at once, as a refused connection does.
func (o *Outage) Down() {
	o.switching.Lock()
	defer o.switching.Unlock()
	o.down = true
}

// Silence makes every call hang until its context ends, as a server behind a
// black hole does.
func (o *Outage) Silence() {
	o.switching.Lock()
	defer o.switching.Unlock()
	if o.silent == nil {
		o.silent = make(chan struct{})
	}
}

// Up ends Down and Silence.
func (o *Outage) Up() {
	o.switching.Lock()
	defer o.switching.Unlock()
	o.down = false
	if o.silent != nil {
		close(o.silent)
		o.silent = nil
	}
}

// LoseReplies lets the next n writing calls do their work and answer that
// their outcome is unknown.
func (o *Outage) LoseReplies(n int) {
	o.switching.Lock()
	defer o.switching.Unlock()
	o.lose = n
}

// enter is what every call does first.
func (o *Outage) enter(ctx context.Context, op string) (err error) {
	o.switching.Lock()
	down, silent, observer := o.down, o.silent, o.observer
	o.switching.Unlock()
	if observer != nil {
		began := time.Now()
		defer func() { observer(driver.Call{Op: op, Took: time.Since(began), Err: err}) }()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if down {
		return &driver.Error{Tier: o.tier, Op: op, Class: driver.ClassDown, Err: errDown}
	}
	if silent == nil {
		return nil
	}
	limit := time.NewTimer(o.limit)
	defer limit.Stop()
	select {
	case <-silent:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return &driver.Error{Tier: o.tier, Op: op, Class: driver.ClassUnknown, Err: context.DeadlineExceeded}
	}
}

// lost reports whether this call's reply is to be lost.
func (o *Outage) lost(op string) error {
	o.switching.Lock()
	defer o.switching.Unlock()
	if o.lose == 0 {
		return nil
	}
	o.lose--
	return &driver.Error{Tier: o.tier, Op: op, Class: driver.ClassUnknown, Err: errors.New("tiertest: reply lost")}
}
