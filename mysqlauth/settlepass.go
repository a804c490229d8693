// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"

	"github.com/tierlock/tierlock/tier/driver"
)

// pass tries to free a batch without waiting for anybody's row: one transaction
// must not keep the other keys from being freed. Locked rows are waited for
// beside it.
func (t *settler) pass(batch []*entry) {
	s, err := t.sessions.take("settle", t.timeout)
	if err != nil {
		t.later(batch, settleBackoff)
		return
	}
	defer s.giveBack()
	began := s.clock.micros // taking a session asks for the server's time
	var freed int64
	err = s.again(&t.retried, func() (err error) {
		freed, err = t.settle(s, t.tables.settle(len(batch)), batch)
		return err
	})
	if err != nil {
		t.failed(batch, answered(err))
		return
	}
	if freed == int64(len(batch)) { // no pair is twice in a batch
		t.close(batch)
		return
	}
	left, err := t.sort(s, batch)
	if err != nil {
		t.failed(batch, false)
		return
	}
	for _, e := range left.locked {
		t.waitFor(e)
	}
	t.later(left.skipped, settleSoon)
	if len(left.missing) > 0 {
		// Nobody's transaction has a row that is not there. One that a claim is
		// just making is waited for.
		if _, err := t.settle(s, t.tables.settleWaiting(len(left.missing)), left.missing); err != nil {
			t.failed(left.missing, rolledBack(err) || answered(err))
			left.missing = nil
		}
	}
	t.close(t.advance(append(left.over, left.missing...), began))
}

// settle runs a statement on entries and counts what it freed.
func (t *settler) settle(s *session, statement string, batch []*entry) (freed int64, err error) {
	ours := make([]pair, len(batch))
	for i, e := range batch {
		ours[i] = e.pair
	}
	freed, err = s.exec(waitLimit, statement, t.tables.pairArgs(ours)...)
	t.settled.Add(uint64(freed))
	t.count(int(freed), 0)
	return freed, err
}

// unsettled says how the rows of a pass are that did not free them all.
type unsettled struct {
	over    []*entry // not locked and not ours, perhaps by this pass
	skipped []*entry // still ours: locked before, and no more
	locked  []*entry
	missing []*entry
}

// sort tells rows that are not ours from rows that are locked, of which nothing
// is known.
func (t *settler) sort(s *session, batch []*entry) (left unsettled, err error) {
	var keys []string
	distinct := make(map[string]struct{}, len(batch))
	for _, e := range batch {
		if _, twice := distinct[e.key]; !twice {
			distinct[e.key] = struct{}{}
			keys = append(keys, e.key)
		}
	}
	unlocked := make(map[string]driver.Token, len(keys))
	err = s.query(t.timeout, func(rows *sql.Rows) error {
		var key, token sql.RawBytes
		if err := rows.Scan(&key, &token); err != nil {
			return err
		}
		var seen driver.Token
		copy(seen[:], token)
		unlocked[string(key)] = seen
		return nil
	}, t.tables.unlocked(len(keys)), t.tables.keyArgs(keys)...)
	if err != nil {
		return left, err
	}
	r, err := s.read(t.timeout, keys)
	if err != nil {
		return left, err
	}
	for _, e := range batch {
		token, free := unlocked[e.key]
		_, exists := r.rows[e.key]
		switch {
		case free && token == e.token:
			left.skipped = append(left.skipped, e)
		case free:
			left.over = append(left.over, e)
		case exists:
			left.locked = append(left.locked, e)
		default:
			left.missing = append(left.missing, e)
		}
	}
	return left, nil
}

// waitFor waits for a locked row on a session of its own, once. When too many
// do already, the next pass comes instead, which frees the row if it is ours
// and no longer locked.
func (t *settler) waitFor(e *entry) {
	if !t.sessions.mayWait() {
		t.later([]*entry{e}, settleBackoff)
		return
	}
	t.mu.Lock()
	e.waiting = true
	t.mu.Unlock()
	t.running.Go(func() {
		defer t.sessions.waited()
		began, freed, err := t.wait(e)
		t.mu.Lock()
		e.waiting = false
		t.mu.Unlock()
		switch one := []*entry{e}; {
		case err != nil:
			t.later(one, settleBackoff)
		case freed:
			t.close(one)
		default:
			t.close(t.advance(one, began))
		}
		t.rouse()
	})
}

func (t *settler) wait(e *entry) (began int64, freed bool, err error) {
	s, err := t.sessions.borrow(t.life, "settle", t.timeout)
	if err != nil {
		return 0, false, err
	}
	defer t.sessions.giveBackBorrowed(s)
	n, err := t.settle(s, t.tables.settleWaiting(1), []*entry{e})
	return s.clock.micros, n == 1, err
}

// failed puts off entries whose statement failed; alone says that one row may
// be why, which must not hold up the others.
func (t *settler) failed(batch []*entry, alone bool) {
	t.mu.Lock()
	for _, e := range batch {
		e.alone = e.alone || alone
	}
	t.mu.Unlock()
	t.later(batch, settleBackoff)
}
