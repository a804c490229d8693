// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier/driver"
)

// Promotion keeps others from the key of a local tenure once the deciding tier
// is back: an ordinary claim takes the row, which from then on stands behind the
// tenure. The tenure stays what it is, LevelLocal and without a fence: what it
// has read may be stale by now.

// promotion is under the mutex of what it promotes.
type promotion struct {
	done chan struct{} // closed when it has ended; nil when the next renewal is to try again
	// undoing are marks of promotions that failed; only promotions touch it.
	undoing []driver.Token
}

// ended is closed when the promotion under way has ended; nil when there is none.
func (p *promotion) ended() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.done
}

// promoteAll promotes every local tenure whose deciding tier serves.
func (l *Locker) promoteAll() {
	for _, h := range l.renewer.snapshot() {
		l.promoteSoon(h)
	}
}

// promoteSoon promotes a tenure behind the caller, if it is a local one that can
// be and is not on its way already.
func (l *Locker) promoteSoon(h *holding) {
	if h.level != LevelLocal || l.deciding(h.policy).State() != breaker.Closed {
		return
	}
	h.mu.Lock()
	defer h.unlock()
	t := h.current // the only one: a local lease is never handed on
	if _, local := t.by.(*localGrantor); !local || t.promotion.ended() != nil || t.state != tenureHeld {
		return
	}
	if t.promotion == nil {
		t.promotion = &promotion{}
	}
	done := make(chan struct{})
	t.promotion.done = done
	l.behind.run(func() {
		defer close(done)
		again := l.promote(t)
		t.mu.Lock()
		defer t.unlock()
		if again {
			t.promotion.done = nil // the next renewal tries again
		}
	})
}

// promote claims until it has an answer. It reports whether the tenure is still
// to be promoted.
func (l *Locker) promote(t *tenure) (again bool) {
	for t.err() == nil {
		by := l.grantorOf(t)
		ctx, cancel := context.WithTimeout(context.Background(), boundWithoutContext)
		grant, err := by.Claim(ctx, driver.Claim{Key: t.full, TTL: t.ttl, Holder: t.holder, Block: 1})
		cancel()
		refusal, refused := errors.AsType[*driver.Refusal](err)
		switch {
		case err == nil:
			t.adopt(grant, by)
			return false
		case refused && (refusal.Busy || refusal.Leaving):
			time.Sleep(busyRetry())
		case refused:
			t.mu.Lock()
			t.lose(errOvertaken)
			t.unlock()
			return false
		default:
			if mark, ok := by.(*markGrantor); ok {
				t.promotion.undoing = append(t.promotion.undoing, mark.token)
			}
			return true
		}
	}
	return false
}

// errOvertaken is how a local lease ends when promotion comes too late.
var errOvertaken = fmt.Errorf("%w: another process was granted the key while it was held locally", ErrLost)

// grantorOf is the tier that decides about a tenure's key. A mark has a token of
// its own for each try: the driver may still be undoing the last one's.
func (l *Locker) grantorOf(t *tenure) grantor {
	if t.policy.Tiers == TiersFilter {
		return &markGrantor{locker: l, token: driver.NewToken(), ttl: t.ttl, undoing: t.promotion.undoing}
	}
	return l.rows
}

// adopt lets a tenure stand on a grant, or gives that back when the tenure has
// ended meanwhile.
func (t *tenure) adopt(g driver.Grant, by grantor) {
	t.mu.Lock()
	defer t.unlock()
	t.readClock(time.Now())
	if t.state != tenureHeld {
		t.locker.releaseBehind(by, driver.Release{Key: t.full, Token: g.Token, Until: g.Until})
		return
	}
	local := t.by
	_ = local.Release(context.Background(), driver.Release{Key: t.full})
	t.by, t.token, t.until = by, g.Token, g.Until
	t.arm(time.Now())
	t.note(func() {
		t.locker.log.Info("others are kept from a key that is held locally; its lease stays without a fence",
			zap.String("key", t.locker.shown(t.key)))
	})
}
