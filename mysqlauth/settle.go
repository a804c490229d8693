// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// settler undoes claims of unknown outcome. An entry passes from settleEarly,
// while a packet on its way could still be executed, to settleOnce and, if
// nothing was found, to settleAgain; a pass that frees it ends it at any time.
type settler struct {
	*Authority
	mu      sync.Mutex
	entries []*entry
	work    chan struct{}
	stop    chan struct{}
}

// entry is one key of a claim of unknown outcome.
type entry struct {
	pair
	debt     *debt
	notAfter int64     // server time from which the claim refuses itself
	due      time.Time // the next pass
	stage    settleStage
	alone    bool // a pass with others met a locked row
}

type settleStage uint8

const (
	// settleEarly: server time is not known to be past not_after.
	settleEarly settleStage = iota
	// settleAgain: a pass since then found nothing, but a claim begun in time
	// may have waited for a lock.
	settleAgain
)

const (
	settleBackoff = 250 * time.Millisecond
	// settleEvery bounds the pause while the server's clock, set back, makes
	// not_after far away.
	settleEvery = 5 * time.Second
)

func newSettler(a *Authority) *settler {
	return &settler{Authority: a, work: make(chan struct{}, 1), stop: make(chan struct{})}
}

// add hands over keys that were claimed under a token until not_after. The
// first pass comes at once: most claims whose reply was lost were executed.
func (t *settler) add(keys []string, token driver.Token, notAfter int64) {
	t.mu.Lock()
	for _, key := range keys {
		t.entries = append(t.entries, &entry{
			pair: pair{key, token}, debt: t.ledger.owe(key), notAfter: notAfter, due: time.Now(),
		})
	}
	t.mu.Unlock()
	select {
	case t.work <- struct{}{}:
	default:
	}
}

// loop is the settler's goroutine. It ends when stop is closed; Close closes
// it when no debt is left, or gives up.
func (t *settler) loop() {
	timer := time.NewTimer(settleEvery)
	defer timer.Stop()
	for {
		batch, next := t.next()
		if len(batch) > 0 {
			t.pass(batch)
			continue
		}
		timer.Reset(next)
		select {
		case <-t.work:
		case <-timer.C:
		case <-t.stop:
			return
		case <-t.life.Done():
			return
		}
	}
}

// next is what is due, or how long nothing is. An entry that is alone comes
// after those that are not, and by itself.
func (t *settler) next() (batch []*entry, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, wait := time.Now(), settleEvery
	var alone *entry
	for _, e := range t.entries {
		switch {
		case e.due.After(now):
			wait = min(wait, e.due.Sub(now))
		case e.alone:
			if alone == nil || e.due.Before(alone.due) {
				alone = e
			}
		case len(batch) < maxBatch:
			batch = append(batch, e)
		}
	}
	if len(batch) == 0 && alone != nil {
		batch = []*entry{alone}
	}
	return batch, wait
}

// pass tries to free a batch.
func (t *settler) pass(batch []*entry) {
	s, err := t.sessions.take("settle", t.timeout)
	if err != nil {
		t.later(batch, settleBackoff)
		return
	}
	defer s.giveBack()
	began := s.clock.micros // taking a session asks for the server's time
	ours := make([]pair, len(batch))
	for i, e := range batch {
		ours[i] = e.pair
	}
	freed, err := s.exec(waitLimit, t.tables.settle(len(ours)), pairArgs(ours)...)
	if err != nil {
		t.mu.Lock()
		for _, e := range batch {
			e.alone = e.alone || rolledBack(err) || answered(err) // one row must not hold up the others
		}
		t.mu.Unlock()
		t.later(batch, settleBackoff)
		return
	}
	t.settled.Add(uint64(freed))
	if freed == int64(len(batch)) { // no pair is twice in a batch
		t.close(batch)
		return
	}
	t.close(t.advance(batch, began))
}

// advance moves entries that a pass begun at the server time may not have
// freed, and returns those that are over.
func (t *settler) advance(batch []*entry, began int64) (over []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, e := range batch {
		switch {
		case began <= e.notAfter:
			left := time.Duration(e.notAfter-began) * time.Microsecond
			e.due = now.Add(min(max(left, settleBackoff), settleEvery))
		case e.stage == settleEarly:
			e.stage = settleAgain
			e.due = now.Add(waitLimit)
		case e.stage == settleAgain:
			over = append(over, e)
		}
	}
	return over
}

func (t *settler) later(batch []*entry, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := time.Now().Add(d)
	for _, e := range batch {
		e.due = due
	}
}

// close ends entries.
func (t *settler) close(batch []*entry) {
	over := make(map[*entry]struct{}, len(batch))
	for _, e := range batch {
		over[e] = struct{}{}
	}
	t.mu.Lock()
	var open []*entry
	for _, e := range t.entries {
		if _, ended := over[e]; !ended {
			open = append(open, e)
		}
	}
	t.entries = open
	t.mu.Unlock()
	for _, e := range batch {
		e.debt.paid()
	}
}
