// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// releaseCall is a release on its way: through the lane, and again after a
// failure, until the server has answered. It runs detached from its caller.
type releaseCall struct {
	driver.Release
	part   uint64 // of a halved batch
	in     *ledger
	answer chan error
	// maybe says that a statement of unknown outcome may have freed the row.
	maybe bool
	busy  int // how often a transaction had the row
}

const (
	// retryRelease is the pause after a failed attempt.
	retryRelease = 250 * time.Millisecond
	// waitLimit bounds a statement that may wait a second for a row.
	waitLimit = 1500 * time.Millisecond
	// retryExpired is that pause when the lease should have expired: a renewal
	// of unknown outcome may have moved its expiry, so only the server can say.
	retryExpired = 5 * time.Second
)

// releaseKind is what the releases of one statement have in common; one with
// MinHold has a statement of its own.
type releaseKind struct {
	part  uint64
	alone *releaseCall
}

func newReleases(a *Authority) *lane[*releaseCall] {
	l := &lane[*releaseCall]{
		from:     a.sessions,
		op:       "release",
		limit:    func([]*releaseCall) time.Duration { return a.timeout },
		unwanted: func(*releaseCall) bool { return false },
		pick: pickBy(maxBatch,
			func(c *releaseCall) releaseKind {
				if c.MinHold != 0 {
					return releaseKind{alone: c}
				}
				return releaseKind{part: c.part}
			},
			func(c *releaseCall) string { return c.Key }),
		run: a.runReleases,
		fail: func(batch []*releaseCall, err error) {
			for _, c := range batch {
				a.releaseLater(c, err)
			}
		},
	}
	return l.open()
}

// Release implements [driver.Authority].
func (a *Authority) Release(ctx context.Context, r driver.Release) error {
	if err := checkRelease(r); err != nil {
		return classify("release", err)
	}
	if !a.ledger.enter() {
		return classify("release", ErrClosed)
	}
	defer a.ledger.leave()
	answer, err := await(ctx, a, "release", a.giveBack(r).answer)
	if err != nil {
		return err // the work goes on
	}
	return answer
}

// giveBack releases in the background.
func (a *Authority) giveBack(r driver.Release) *releaseCall {
	call := a.owing(r)
	a.releases.add(call)
	return call
}

// owing is a release that Close waits for until it has ended.
func (a *Authority) owing(r driver.Release) *releaseCall {
	a.ledger.owe(r.Key)
	return &releaseCall{Release: r, in: a.ledger, answer: make(chan error, 1)}
}

func (c *releaseCall) end(err error) {
	c.answer <- err
	c.in.paid(c.Key)
}

// runReleases is one attempt that never waits for a locked row: others' keys
// are in the statement, and behind it in the queue. When as many rows were freed
// as were asked for, all were; otherwise the rows say which.
func (a *Authority) runReleases(s *session, batch []*releaseCall) {
	mark := rand.Uint64() >> 2 // room for the guarded transactions that count it up
	statement, args := a.releaseStatement(batch, mark)
	var freed int64
	var sent time.Time
	err := s.again(&a.retried, func() (err error) {
		sent = time.Now()
		freed, err = s.exec(a.timeout, statement, args...)
		return err
	})
	switch {
	case err != nil && answered(err) && len(batch) > 1:
		a.halveReleases(batch)
		return
	case err != nil:
		for _, c := range batch {
			c.maybe = c.maybe || !proves(err)
			a.releaseLater(c, err)
		}
		return
	case freed == int64(len(batch)):
		for _, c := range batch {
			c.end(nil)
		}
		return
	}
	keys := make([]string, len(batch))
	for i, c := range batch {
		keys[i] = c.Key
	}
	r, err := s.read(a.timeout, keys)
	if err != nil {
		for _, c := range batch {
			c.maybe = c.maybe || freed > 0
			a.releaseLater(c, err)
		}
		return
	}
	a.released(batch, r, mark, int(freed), time.Since(sent))
}

// released answers a batch that did not free all its rows, of which it freed a
// number, and which began at most so long before the rows were read.
//
// A release leaves its mark in the column guard, which a later claim does not
// touch, so that a row that was freed and taken again since is told from one that
// had been lost before. Only if its next holder has left it too is the mark gone.
// Then more rows were freed than have the mark, and the rest are among those
// whose last claim is not older than the batch. If others have lost such a row in
// that same moment nobody can tell which is which: all of them count as freed,
// since one of them was, and no loss is reported that was none.
func (a *Authority) released(batch []*releaseCall, r reading, mark uint64, freed int, began time.Duration) {
	var gone []*releaseCall
	for _, c := range batch {
		loss := lossOf(r, c.Key, c.Token)
		switch {
		case loss == nil: // still ours: a transaction has the row
			a.releaseBusy(c)
		case r.rows[c.Key].marked(mark):
			freed--
			c.end(nil)
		case loss.Reason == driver.LossExpired:
			c.lost(loss)
		default:
			gone = append(gone, c)
		}
	}
	for _, c := range gone {
		// A claim has its beginning for its time, and may have waited since.
		if freed > 0 && r.rows[c.Key].age < began+waitLimit {
			c.end(nil)
			continue
		}
		c.lost(lossOf(r, c.Key, c.Token))
	}
}

// marked reports that the release of this mark freed the row.
func (r row) marked(mark uint64) bool { return r.guard-mark < 1<<32 }

// releaseStatement never waits.
func (a *Authority) releaseStatement(batch []*releaseCall, mark uint64) (string, []any) {
	ours := make([]pair, len(batch))
	for i, c := range batch {
		ours[i] = pair{c.Key, c.Token}
	}
	if c := batch[0]; c.MinHold != 0 {
		return a.tables.keep(), append(a.tables.pairArgs(ours), c.keepArgs()...)
	}
	return a.tables.release(len(ours)), append(a.tables.pairArgs(ours), mark)
}

// halveReleases repeats a batch in two parts: one row may be why it failed.
func (a *Authority) halveReleases(batch []*releaseCall) {
	first, second := a.part.Add(1), a.part.Add(1)
	for i, c := range batch {
		c.maybe = true // an answer that nobody listed proves nothing
		c.part = first
		if i >= len(batch)/2 {
			c.part = second
		}
	}
	a.releases.add(batch...)
}

// lost ends a release that found the lease gone. If an earlier attempt of this
// call may have been what freed it, it did.
func (c *releaseCall) lost(loss *driver.Loss) {
	if c.maybe && loss.Reason != driver.LossExpired {
		c.end(nil)
		return
	}
	c.end(loss)
}
