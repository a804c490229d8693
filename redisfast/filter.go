// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

// refreshBatch is how many marks share a pipeline.
const refreshBatch = 500

// Filter implements [driver.Filter] on Redis. Its methods are safe for
// concurrent use.
type Filter struct {
	client  redis.UniversalClient
	owned   bool // Open made the client
	timeout time.Duration
	prefix  string
	log     *zap.Logger

	batches *batcher
	wakes   *wakeups
	undos   *undoer
	timers  timers

	observer atomic.Pointer[driver.Observer]

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // requests under way, and the undoer
}

var _ driver.Filter = (*Filter)(nil)

// New returns a Filter on the caller's client, which it never closes. The
// client should have ContextTimeoutEnabled, so that calls that were given up end
// soon; Check warns when it has not.
func New(client redis.UniversalClient, opts ...Option) (*Filter, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	// A nil *redis.Client in the interface is as much of a mistake as nil.
	if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: client is nil", ErrOption)
	}
	f := &Filter{client: client, timeout: o.timeout, prefix: o.prefix, log: o.logger}
	f.wakes = newWakeups(client, o.logger)
	f.undos = newUndoer(f)
	f.batches = newBatcher(f)
	return f, nil
}

// Mark implements [driver.Filter].
func (f *Filter) Mark(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	if err := checkMark(m); err != nil {
		return driver.MarkState{}, fault("mark", err)
	}
	return f.send(ctx, marking, about(key, m))
}

// Extend implements [driver.Filter]. The flag of the mark stays what it was.
func (f *Filter) Extend(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	if err := checkMark(m); err != nil {
		return driver.MarkState{}, fault("extend", err)
	}
	return f.send(ctx, extending, about(key, m))
}

// Overwrite implements [driver.Filter].
func (f *Filter) Overwrite(ctx context.Context, key string, m driver.Mark) (driver.MarkState, error) {
	if err := checkMark(m); err != nil {
		return driver.MarkState{}, fault("overwrite", err)
	}
	return f.send(ctx, overwriting, about(key, m))
}

// Refresh implements [driver.Filter]. One pipeline carries up to 500 marks, and
// each pipeline has the filter's timeout. A key that the server refuses does not
// keep the others from being refreshed.
func (f *Filter) Refresh(ctx context.Context, marks []driver.KeyMark) ([]driver.MarkState, error) {
	for _, km := range marks {
		if err := checkMark(km.Mark); err != nil {
			return nil, fault("refresh", err)
		}
	}
	states := make([]driver.MarkState, 0, len(marks))
	var refused error
	for len(marks) > 0 {
		n := min(len(marks), refreshBatch)
		batch, err := f.refresh(ctx, marks[:n])
		if err != nil && driver.ClassOf(err) != driver.ClassConfig {
			return nil, err
		}
		if err != nil && refused == nil {
			refused = err
		}
		states, marks = append(states, batch...), marks[n:]
	}
	if refused != nil {
		return nil, refused
	}
	return states, nil
}

func (f *Filter) refresh(ctx context.Context, marks []driver.KeyMark) ([]driver.MarkState, error) {
	ids := make([]markID, len(marks))
	calls := make([]invocation, len(marks))
	for i, km := range marks {
		ids[i] = markID{km.Key, km.Mark.Token}
		calls[i] = invocation{key: f.markKey(km.Key), args: markArgs(km.Mark)}
	}
	return call(ctx, f, exchange[[]driver.MarkState]{
		op:    "refresh",
		begin: func() { f.undos.planting(ids...) },
		run: func(ctx context.Context) ([]driver.MarkState, error) {
			states := make([]driver.MarkState, len(calls))
			var first error
			for i, cmd := range refreshScript.runAll(ctx, f.client, calls) {
				st, err := stateOf(cmd)
				if err != nil && first == nil {
					first = err
				}
				states[i] = st
			}
			return states, first
		},
		end: func(_ []driver.MarkState, err error, _ bool) { f.undos.planted(err, ids...) },
	})
}

// Clear implements [driver.Filter]. When it returns an error that another try
// could mend, the driver goes on trying for a few seconds; then the mark is left
// to its time to live.
func (f *Filter) Clear(ctx context.Context, key string, token driver.Token, wake bool) error {
	if token.IsZero() {
		return fault("clear", fmt.Errorf("%w: token is zero", ErrOption))
	}
	e := errands.Get().(*errand)
	e.id, e.wake, e.value, e.channel = markID{key, token}, wake, token.String(), ""
	if wake {
		e.channel = f.wakeChannel(key)
	}
	_, err := f.send(ctx, clearing, e)
	return err
}

// Wakeups implements [driver.Filter]. All keys share one connection.
func (f *Filter) Wakeups(key string) (<-chan struct{}, func()) {
	return f.wakes.add(f.wakeChannel(key))
}

// Observe implements [driver.Filter].
func (f *Filter) Observe(o driver.Observer) { f.observer.Store(&o) }

// Ping implements [driver.Filter].
func (f *Filter) Ping(ctx context.Context) error {
	_, err := call(ctx, f, exchange[struct{}]{
		op:  "ping",
		run: func(ctx context.Context) (struct{}, error) { return struct{}{}, f.client.Ping(ctx).Err() },
	})
	return err
}

// Close implements [driver.Filter]. When ctx ends first, its error says what was
// left; that work ends by itself, within the client's own limits.
func (f *Filter) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.undos.hurry()
	f.wakes.close()

	joined := make(chan struct{})
	go func() {
		f.work.Wait()
		f.batches.close()
		f.wakes.wait()
		close(joined)
	}()
	var err error
	select {
	case <-joined:
	case <-ctx.Done():
		left := f.undos.abandon()
		err = callerFault("close", fmt.Errorf("%d marks left to their time to live: %w", left, ctx.Err()))
	}
	if f.owned {
		// Of an owned client this also ends what is still under way.
		if cerr := f.client.Close(); cerr != nil && err == nil && !isClosed(cerr) {
			err = fault("close", cerr)
		}
	}
	return err
}

// about is an errand about a mark.
func about(key string, m driver.Mark) *errand {
	e := errands.Get().(*errand)
	e.id, e.value, e.ttl = markID{key, m.Token}, encodeMark(m), m.TTL.Milliseconds()
	return e
}

// deletion is the run of the clear script for one mark.
func (f *Filter) deletion(id markID, wake bool) invocation {
	channel := ""
	if wake {
		channel = f.wakeChannel(id.key)
	}
	return invocation{key: f.markKey(id.key), args: []any{id.token.String(), channel}}
}

func (f *Filter) markKey(key string) string     { return f.prefix + "mark:" + key }
func (f *Filter) wakeChannel(key string) string { return f.prefix + "wake:" + key }

// enter counts a piece of work that Close waits for; false after Close.
func (f *Filter) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.work.Add(1)
	return true
}

func (f *Filter) leave() { f.work.Done() }

// checkMark refuses what Redis would refuse, and the token that names nothing.
func checkMark(m driver.Mark) error {
	if m.Token.IsZero() {
		return fmt.Errorf("%w: token is zero", ErrOption)
	}
	if m.TTL < minTTL || m.TTL > maxTTL {
		return fmt.Errorf("%w: time to live %v is not between %v and %v", ErrOption, m.TTL, minTTL, maxTTL)
	}
	return nil
}
