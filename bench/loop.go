// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"
)

// worker is one goroutine of a loop and what it saw.
type worker struct {
	number int
	lock   contestant
	window window
	rnd    *rand.Rand

	attempts, grants, errors int64
	lastError                error
	latencies                map[int64]int64
	spans                    []span
}

// counts reports whether what began then and has ended now counts.
func (w *worker) counts(began, ended instant) bool {
	return began >= w.window.From && ended < w.window.Until
}

// failed counts an error, but for those of the end.
func (w *worker) failed(err error) {
	if now() < w.window.Until {
		w.errors++
		w.lastError = err
		time.Sleep(time.Millisecond) // a lock that only fails is not to fill the processor
	}
}

// pair acquires and releases a key, and counts it.
func (w *worker) pair(ctx context.Context, key string) {
	began := now()
	h, err := w.lock.Acquire(ctx, w.number, key)
	if err == nil {
		err = h.Release(ctx)
	}
	if err != nil {
		w.failed(err)
		return
	}
	w.granted(began, now())
}

func (w *worker) granted(began, ended instant) {
	if !w.counts(began, ended) {
		return
	}
	w.attempts++
	w.grants++
	w.latencies[ended.sub(began).Microseconds()]++
}

// runWorkers runs the step of every worker until the window ends.
func runWorkers(ctx context.Context, t task, begin func(string) window, step func(context.Context, *worker)) (measured, error) {
	lock, err := makerOf(t.Lock).make(t)
	if err != nil {
		return measured{}, err
	}
	workers := make([]*worker, t.Workers)
	for i := range workers {
		workers[i] = &worker{
			number: i, lock: lock, latencies: make(map[int64]int64),
			rnd: rand.New(rand.NewPCG(uint64(t.Round), uint64(t.Proc*t.Workers+i))),
		}
		if t.Spans != "" {
			workers[i].spans = make([]span, 0, 1<<14)
		}
	}
	win := begin("ready")
	ctx, cancel := context.WithTimeout(ctx, win.Until.sub(now())+5*time.Second) // nobody may hang
	defer cancel()
	var before, after runtime.MemStats
	var all sync.WaitGroup
	for _, w := range workers {
		w.window = win
		all.Go(func() {
			for now() < win.Until {
				step(ctx, w)
			}
		})
	}
	sleepUntil(win.From)
	stopProfile, err := profile(t.Profile)
	if err != nil {
		return measured{}, err
	}
	runtime.ReadMemStats(&before)
	sleepUntil(win.Until)
	runtime.ReadMemStats(&after)
	err = stopProfile()
	all.Wait()

	m := measured{Latencies: make(map[int64]int64), Extra: make(map[string]float64)}
	var spans [][]span
	var lastError error
	for _, w := range workers {
		m.Attempts += w.attempts
		m.Grants += w.grants
		m.Errors += w.errors
		for us, n := range w.latencies {
			m.Latencies[us] += n
		}
		if w.lastError != nil {
			lastError = w.lastError
		}
		spans = append(spans, w.spans)
	}
	if lastError != nil {
		m.LastError = lastError.Error()
	}
	m.Extra["allocs"] = float64(after.Mallocs-before.Mallocs) / float64(max(m.Grants, 1))
	if l, ok := lock.(*tierlock); ok {
		m.Extra["statements"] = float64(l.asked.n.Load())
	}
	if t.Spans != "" {
		err = errors.Join(err, writeSpans(t.Spans, spans))
	}
	return m, errors.Join(err, lock.Close())
}

// profile begins a CPU profile, unless path is empty; stop ends it, and writes
// what was allocated since the start beside it.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(path + ".allocs")
		if err == nil {
			err = errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close())
		}
		return errors.Join(err, f.Close())
	}, nil
}

// keyOf is the name of a warmed key.
func keyOf(n int) string { return fmt.Sprintf("key-%06d", n) }

// runDistinct draws from the worker's own slice of the keys: nobody waits for
// another.
func runDistinct(ctx context.Context, t task, begin func(string) window) (measured, error) {
	return runWorkers(ctx, t, begin, func(ctx context.Context, w *worker) {
		first, next := t.Keys*w.number/t.Workers, t.Keys*(w.number+1)/t.Workers
		w.pair(ctx, keyOf(first+w.rnd.IntN(max(next-first, 1))))
	})
}

// runFresh uses every key once.
func runFresh(ctx context.Context, t task, begin func(string) window) (measured, error) {
	started := now()
	return runWorkers(ctx, t, begin, func(ctx context.Context, w *worker) {
		w.pair(ctx, fmt.Sprintf("fresh-%08x-%016x-%d", w.rnd.Uint32(), started, w.number))
	})
}

// runHot is one key that everybody wants.
func runHot(ctx context.Context, t task, begin func(string) window) (measured, error) {
	return runWorkers(ctx, t, begin, func(ctx context.Context, w *worker) {
		began := now()
		h, err := w.lock.Acquire(ctx, w.number, "hot")
		if err != nil {
			w.failed(err)
			return
		}
		s := span{Proc: int64(t.Proc), From: now()}
		if t.Hold > 0 {
			time.Sleep(t.Hold)
		}
		s.Until = now()
		w.spans = append(w.spans, s)
		if err := h.Release(ctx); err != nil {
			w.failed(err)
			return
		}
		w.granted(began, now())
	})
}

// runContended asks once, and pauses when refused.
func runContended(ctx context.Context, t task, begin func(string) window) (measured, error) {
	return runWorkers(ctx, t, begin, func(ctx context.Context, w *worker) {
		n := w.rnd.IntN(t.Keys)
		began := now()
		h, err := w.lock.Try(ctx, w.number, keyOf(n))
		switch {
		case errors.Is(err, errRefused):
			if w.counts(began, now()) {
				w.attempts++
			}
			time.Sleep(t.Pause)
			return
		case err != nil:
			w.failed(err)
			return
		}
		s := span{Key: int64(n), Proc: int64(t.Proc), From: now()}
		time.Sleep(t.Hold)
		s.Until = now()
		w.spans = append(w.spans, s)
		if err := h.Release(ctx); err != nil {
			w.failed(err)
			return
		}
		w.granted(began, now())
	})
}

// runEtcd is the server that etcd's peers share. It lives until its parent lets
// go of it.
func runEtcd(_ context.Context, t task, begin func(string) window) (measured, error) {
	return measured{}, serveEtcd(t.Dir, func(endpoint string) { begin(endpoint) })
}
