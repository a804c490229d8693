// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Close ends the locker: new calls and waiters get [ErrClosed]; what is held is
// renewed for [WithDrain] more; then the holders' contexts end with ErrClosed
// and nothing is renewed. It waits until ctx ends for the holders to release,
// leaves the rest to expire and names it in its error, and closes the filter
// and the authority. It returns within ctx. A second Close waits for the first
// and returns nil.
func (l *Locker) Close(ctx context.Context) error {
	if !l.begun.CompareAndSwap(false, true) {
		select {
		case <-l.closed:
			return nil
		case <-ctx.Done():
			return &Error{Op: "close", Err: ctx.Err()}
		}
	}
	defer close(l.closed)
	l.close(ErrClosed)

	l.drain(ctx)
	err := l.renewer.awaitReleases(ctx, l.renewer.stop())
	if waitErr := l.behind.wait(ctx); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("background work was left unfinished: %w", waitErr))
	}
	l.stopWatching()
	if l.filter != nil {
		err = errors.Join(err, l.filter.Close(ctx))
	}
	err = errors.Join(err, l.authority.Close(ctx))
	if err != nil {
		return &Error{Op: "close", Err: err}
	}
	return nil
}

// drain lets the renewer go on until nothing is held or the time is up.
func (l *Locker) drain(ctx context.Context) {
	if l.settings.drain == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.settings.drain)
	defer cancel()
	select {
	case <-l.renewer.empty():
	case <-ctx.Done():
	}
}

// empty returns a channel that is closed when nothing is held.
func (r *renewer) empty() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if r.drained == nil {
		r.drained = make(chan struct{})
	}
	return r.drained
}

// stop ends all renewals, tells the holders that the locker is closed, and
// returns them.
func (r *renewer) stop() []*holding {
	r.mu.Lock()
	r.stopped = true
	r.poke()
	r.mu.Unlock()
	held := r.snapshot()
	for _, h := range held {
		h.mu.Lock()
		h.current.callOff(ErrClosed)
		h.unlock()
	}
	return held
}

// snapshot returns what is held.
func (r *renewer) snapshot() []*holding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.held))
}

// awaitReleases waits for the holders, and names what they did not release.
func (r *renewer) awaitReleases(ctx context.Context, held []*holding) error {
	select {
	case <-r.empty():
	case <-ctx.Done():
	}
	var errs []error
	for _, h := range held {
		h.mu.Lock()
		t := h.current
		if t.state != tenureEnding {
			t.lose(ErrClosed)
			errs = append(errs, t.error("close", fmt.Errorf("not released; it %s", expiry(t.until))))
		}
		h.unlock()
	}
	if len(errs) > 0 {
		errs = append(errs, ctx.Err())
	}
	return errors.Join(errs...)
}
