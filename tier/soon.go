// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"sync"
	"time"
)

// soon gives contexts to work behind callers that has to end within about a
// second. What begins at about the same time shares one: such work comes with
// every release, and a context with a timer of its own would cost more than the
// rest of it.
type soon struct {
	mu     sync.Mutex
	ctx    context.Context
	shared time.Time // until when it is given out
}

// soonShared is for how long a context is given out: it ends a second after that.
const soonShared = 250 * time.Millisecond

func (s *soon) context() context.Context {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || now.After(s.shared) {
		ctx, cancel := context.WithTimeout(context.Background(), soonShared+boundWithoutContext)
		context.AfterFunc(ctx, cancel) // its time is its only end
		s.ctx, s.shared = ctx, now.Add(soonShared)
	}
	return s.ctx
}
