// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"sync"
)

// background counts what has to end before the drivers are closed: calls under
// way, and goroutines that work behind callers who have been answered. Unlike a sync.WaitGroup it may grow while somebody waits: holders
// release while Close is under way.
type background struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to 0; nil when nobody waits
}

// run starts f in a goroutine that wait waits for.
func (b *background) run(f func()) {
	b.begin()
	go func() {
		defer b.done()
		f()
	}()
}

// begin makes wait wait for what the caller does until it calls done.
func (b *background) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
}

func (b *background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.n == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

// wait returns nil when nothing runs, and the context's error when it ends
// first.
func (b *background) wait(ctx context.Context) error {
	b.mu.Lock()
	if b.n == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
