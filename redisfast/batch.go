// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// flushers is how many pipelines may be under way: one that hangs must not
	// hold up everybody.
	flushers = 3
	// maxBatch is how many errands share a pipeline.
	maxBatch = 500
	// keepFor is how long a flusher waits for more to do before it ends.
	keepFor = time.Second
)

// batcher sends errands together, without a timer: what queued while the last
// pipelines ran goes with the next.
type batcher struct {
	f    *Filter
	stop chan struct{} // closed: idle flushers end
	once sync.Once
	work chan struct{} // wakes one of those who are idle

	mu      sync.Mutex
	queue   []*errand
	running int
	idle    int
	all     sync.WaitGroup
}

func newBatcher(f *Filter) *batcher {
	return &batcher{f: f, stop: make(chan struct{}), work: make(chan struct{}, flushers)}
}

// add queues an errand.
func (b *batcher) add(e *errand) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, e)
	switch {
	case b.idle > 0:
		b.idle--
		b.work <- struct{}{}
	case b.running < flushers:
		b.running++
		b.all.Go(b.run)
	}
}

// next takes the next batch out of the queue. Without one the flusher is idle.
func (b *batcher) next(batch []*errand) []*errand {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), maxBatch)
	batch = append(batch[:0], b.queue[:n]...)
	rest := copy(b.queue, b.queue[n:])
	clear(b.queue[rest:])
	b.queue = b.queue[:rest]
	if n == 0 {
		b.idle++
	}
	return batch
}

// run is a flusher. It ends when it has been idle for a while, or is told to.
func (b *batcher) run() {
	idle := time.NewTimer(keepFor)
	defer idle.Stop()
	var batch []*errand
	for {
		if batch = b.next(batch); len(batch) > 0 {
			b.flush(batch)
			continue
		}
		idle.Reset(keepFor)
		select {
		case <-b.work:
			continue
		case <-idle.C:
		case <-b.stop:
		}
		if b.retire() {
			return
		}
	}
}

// close ends the flushers when nothing is queued any more.
func (b *batcher) close() {
	b.once.Do(func() { close(b.stop) })
	b.all.Wait()
}

// retire ends an idle flusher, unless it was given work at that moment.
func (b *batcher) retire() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.idle == 0 {
		<-b.work
		return false
	}
	b.idle--
	b.running--
	return true
}

// flush sends a batch and answers everybody in it.
func (b *batcher) flush(batch []*errand) {
	f := b.f
	sent := batch[:0]
	for _, e := range batch {
		if !e.unsent(f) {
			sent = append(sent, e)
		}
	}
	clear(batch[len(sent):])
	if len(sent) == 0 {
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	var ops []string
	for _, e := range sent {
		ops = with(ops, e.op.name)
	}
	// A client that does not keep deadlines must not hide that there was no answer.
	inTime := context.AfterFunc(ctx, func() {
		for _, op := range ops {
			f.observe(op, began, ErrTimeout)
		}
	})
	f.pipeline(ctx, sent)
	if inTime() {
		for _, op := range ops {
			f.observe(op, began, outcome(sent, op))
		}
	}
	for i, e := range sent {
		sent[i] = nil
		e.done(f)
	}
}

// with is a set of very few names.
func with(names []string, name string) []string {
	for _, known := range names {
		if known == name {
			return names
		}
	}
	return append(names, name)
}

// outcome is what the pipeline tells about an operation: it failed when all of
// its errands did.
func outcome(sent []*errand, op string) (err error) {
	for _, e := range sent {
		if e.op.name != op {
			continue
		}
		if err = e.cmd.Err(); err == nil {
			return nil
		}
	}
	return err
}

// pipeline runs the scripts of a batch, and once more by their text those that
// the server did not know. The whole text goes with each of them rather than a
// SCRIPT LOAD before: keys of a cluster live on different servers, and the cache
// may be emptied again in between. Commands carry their own errors.
func (f *Filter) pipeline(ctx context.Context, batch []*errand) {
	pipe := f.client.Pipeline()
	for _, e := range batch {
		e.cmd = e.command(ctx, "evalsha", e.op.script.digest)
		_ = pipe.Process(ctx, e.cmd) // queues it
	}
	execute(ctx, pipe)
	again := 0
	for _, e := range batch {
		if e.cmd.Err() != nil && redis.HasErrorPrefix(e.cmd.Err(), "NOSCRIPT") {
			e.cmd = e.command(ctx, "eval", e.op.script.source)
			_ = pipe.Process(ctx, e.cmd)
			again++
		}
	}
	if again > 0 {
		execute(ctx, pipe)
	}
}

// command points into the errand instead of boxing what is there already.
func (e *errand) command(ctx context.Context, verb, script any) *redis.Cmd {
	e.args = [...]any{verb, script, "1", &e.key, &e.value, &e.ttl}
	if e.op == clearing {
		e.args[5] = &e.channel
	}
	cmd := redis.NewCmd(ctx, e.args[:]...)
	cmd.SetFirstKeyPos(3)
	return cmd
}
