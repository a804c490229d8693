// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// passage is what the filter's answer means for the way to the authority.
type passage uint8

const (
	passOpen    passage = iota // our mark stands: claim
	passLook                   // a foreign mark has stood too long to be believed: look
	passRefused                // wait
	passOut                    // the filter does not answer: the authority alone
)

// askFilter plants our mark, or extends it where we were next in line already.
func (a *attempt) askFilter(ctx context.Context) (passage, obstacle) {
	l := a.locker
	if l.filter == nil {
		return passOut, obstacle{}
	}
	if a.marked {
		state, err := l.filter.Extend(ctx, a.full, a.mark)
		if err != nil {
			return a.filterOut(ctx, err)
		}
		l.filterIn.answered()
		if state.Ours {
			return passOpen, obstacle{}
		}
		a.marked = false // forgotten, or taken over: no longer next
	}
	state, err := l.filter.Mark(ctx, a.full, a.mark)
	if err != nil {
		return a.filterOut(ctx, err)
	}
	l.filterIn.answered()
	if state.Ours {
		a.marked = true
		return passOpen, obstacle{}
	}
	met := a.refuseMark(state)
	if state.Flagged {
		return passRefused, met
	}
	known := l.refusals.see(a.full, state.Other, time.Now())
	if known >= patience {
		return passLook, met
	}
	met.atMost = least(met.atMost, patience-known)
	return passRefused, met
}

func (a *attempt) filterOut(ctx context.Context, err error) (passage, obstacle) {
	if ctx.Err() == nil {
		a.locker.filterIn.failed(err)
	}
	return passOut, obstacle{}
}

// refuseMark notes that a foreign mark stands in the way.
func (a *attempt) refuseMark(s driver.MarkState) obstacle {
	a.refused = fmt.Errorf("%w: redis: another's mark stands for %v", ErrHeld, s.Left.Round(time.Millisecond))
	a.left = s.Left
	return obstacle{atMost: s.Left}
}

// clearBehind deletes a mark and wakes those who wait for it, behind the
// caller.
func (l *Locker) clearBehind(full string, token driver.Token) {
	l.behind.run(func() { l.clear(full, token) })
}

func (l *Locker) clear(full string, token driver.Token) {
	ctx, cancel := context.WithTimeout(context.Background(), boundWithoutContext)
	defer cancel()
	if err := l.filter.Clear(ctx, full, token, true); err != nil {
		l.filterIn.failed(err)
		return
	}
	l.filterIn.answered()
}
