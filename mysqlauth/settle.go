// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// settler undoes claims of unknown outcome. An entry stays settleEarly while a
// packet on its way could still be executed, and is settleAgain after the first
// pass since then that found nothing; the next one that does is the last. A pass
// that frees the row ends it at any time.
type settler struct {
	*Authority
	mu      sync.Mutex
	entries []*entry
	freed   int // rows whose entries are not over; for metrics
	work    chan struct{}
	stop    chan struct{}
}

// entry is one key of a claim of unknown outcome.
type entry struct {
	pair
	notAfter int64     // server time from which the claim refuses itself
	due      time.Time // the next pass
	stage    settleStage
	alone    bool // a statement with others failed, perhaps because of this row
	waiting  bool // on a session of its own, for a locked row; no pass takes it
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
	// settleSoon is the pause after a row was locked, and then no more.
	settleSoon = 20 * time.Millisecond
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
		t.ledger.owe(key)
		t.entries = append(t.entries, &entry{
			pair: pair{key, token}, notAfter: notAfter, due: time.Now(),
		})
	}
	t.mu.Unlock()
	t.rouse()
}

func (t *settler) rouse() {
	select {
	case t.work <- struct{}{}:
	default: // a wake-up is already under way
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
		case e.waiting:
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
	t.count(0, len(batch))
	for _, e := range batch {
		t.ledger.paid(e.key)
	}
}
