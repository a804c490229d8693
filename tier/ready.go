// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"
)

// readiness asks the start-up questions once: until the authority has answered
// them well no lease is granted, whether or not anybody called Check. One
// caller asks at a time, the others wait for it.
type readiness struct {
	yes    atomic.Bool
	asking chan struct{} // holds one value while somebody asks
}

func (r *readiness) check(ctx context.Context, l *Locker) error {
	if r.yes.Load() {
		return nil
	}
	select {
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.yes.Load() {
		return nil
	}
	if err := l.authority.Check(ctx); err != nil {
		return err
	}
	r.yes.Store(true)
	if l.filter != nil {
		l.behind.run(func() { l.checkFilter() })
	}
	return nil
}

func (l *Locker) checkFilter() {
	ctx, cancel := context.WithTimeout(l.closing, boundWithoutContext)
	defer cancel()
	if err := l.filter.Check(ctx); err != nil && l.closing.Err() == nil {
		l.log.Warn("redis filter is not ready; locking goes on through the authority", zap.Error(err))
	}
}
