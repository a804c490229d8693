// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"bytes"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// attempt is one batch of claims on the server, under one token. The token is
// kept only while every error proves that nothing happened.
type attempt struct {
	*Authority
	s        *session
	ttl      time.Duration
	block    uint64
	holder   []byte
	token    driver.Token
	calls    map[string]*claimCall
	sent     time.Time // before the statement that may have granted
	notAfter int64     // of the last statement
}

// finding is what a read-back says of a key. Only the lane touches it.
type finding struct {
	how   found
	fence uint64
}

type found uint8

const (
	foundNothing found = iota
	foundOurs
	foundOther // not under our token
)

var errStrangeRow = errors.New("the server answered with a row that was not asked for")

// rounds bounds how often another process may make rows before we do.
const rounds = 3

func (a *Authority) runClaims(s *session, batch []*claimCall) {
	t := &attempt{
		Authority: a,
		s:         s,
		ttl:       batch[0].claim.TTL,
		block:     uint64(batch[0].claim.Block),
		holder:    []byte(batch[0].claim.Holder),
		token:     driver.NewToken(),
		calls:     make(map[string]*claimCall, len(batch)),
	}
	keys := make([]string, len(batch))
	for i, c := range batch {
		keys[i] = c.claim.Key
		t.calls[c.claim.Key] = c
	}
	t.run(sortedKeys(keys))
}

// run takes what is free, learns what became of it, and makes the rows that
// are missing. What is open is not ours before each round.
func (t *attempt) run(open []string) {
	for range rounds {
		args := t.tables.keyArgs(open)
		took, err := t.send(func() (int64, error) { return t.update(args, len(open)) })
		if err != nil {
			t.failed(open, err)
			return
		}
		if len(open) == 1 && took > 0 {
			c := t.calls[open[0]]
			c.found = finding{how: foundOurs, fence: uint64(took)}
			t.grant(c)
			return
		}
		missing, err := t.learn(open, args)
		if err != nil || len(missing) == 0 {
			return
		}
		open = missing
		args = t.tables.keyArgs(open)
		made, err := t.send(func() (int64, error) { return t.insert(args, len(open)) })
		switch {
		case err == nil:
			if open, err = t.learn(open, args); err == nil && len(open) > 0 {
				t.refuse(open, t.whyMissing(made))
			}
			return
		case !duplicate(err):
			t.failed(open, err)
			return
		}
	}
	t.refuse(open, &driver.Refusal{Busy: true})
}

// send repeats a statement that proves to have done nothing, and keeps the
// instant of the last sending, from which a lease's time counts.
func (t *attempt) send(statement func() (int64, error)) (answer int64, err error) {
	err = t.s.again(&t.retried, func() error {
		t.sent = time.Now()
		t.notAfter = t.s.clock.at(t.sent) + t.timeout.Microseconds()
		answer, err = statement()
		return err
	})
	return answer, err
}

// update takes what is free. Of one key it returns the fence, or 0.
func (t *attempt) update(keys []any, n int) (fence int64, err error) {
	args := append(slices.Clip(keys), maxFence-t.block, t.notAfter, t.block, t.token[:], t.holder, t.ttl.Microseconds())
	if n > 1 {
		return t.s.exec(t.timeout, t.tables.claim(n), args...)
	}
	result, err := t.s.run(t.timeout, t.tables.claimAlone(), args...)
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

func (t *attempt) insert(keys []any, n int) (int64, error) {
	args := append([]any{t.token[:], t.block, t.holder, t.ttl.Microseconds()}, keys...)
	args = append(args, t.notAfter, maxFence-t.block)
	// It may wait for the floor or for another's row, which is contention: the
	// server's answer to that must come before the limit does.
	return t.s.exec(waitLimit, t.tables.insert(n), args...)
}

// learn reads the keys back and answers every call whose row is there. When
// it fails they are answered too: nothing is known about any.
func (t *attempt) learn(keys []string, args []any) (missing []string, err error) {
	if err := t.readBack(keys, args); err != nil {
		t.unknown(keys, err)
		return nil, err
	}
	var others []string
	for _, key := range keys {
		switch c := t.calls[key]; c.found.how {
		case foundOurs:
			t.grant(c)
		case foundOther:
			others = append(others, key)
		case foundNothing:
			missing = append(missing, key)
		}
	}
	if len(others) > 0 {
		t.explainOthers(others)
	}
	return missing, nil
}

// readBack finds what became of the keys, and the server's time on the way.
func (t *attempt) readBack(keys []string, args []any) error {
	for _, key := range keys {
		t.calls[key].found = finding{}
	}
	sent := time.Now()
	var key, token sql.RawBytes // here, so that not every row has its own
	var fence uint64
	var micros int64
	return t.s.query(t.timeout, func(rows *sql.Rows) error {
		if err := rows.Scan(&key, &token, &fence, &micros); err != nil {
			return err
		}
		t.s.clock.set(micros, sent)
		c := t.calls[string(key)]
		if c == nil {
			return errStrangeRow
		}
		c.found = finding{how: foundOther, fence: fence}
		if bytes.Equal(token, t.token[:]) {
			c.found.how = foundOurs
		}
		return nil
	}, t.tables.readBack(len(keys)), args...)
}

// explainOthers answers calls whose rows are known not to be ours with how the
// rows are now.
func (t *attempt) explainOthers(keys []string) {
	r, err := t.s.read(t.timeout, keys)
	if err != nil {
		t.refuse(keys, unreachable("claim", err))
		return
	}
	for _, key := range keys {
		row, c := r.rows[key], t.calls[key]
		switch {
		case row.held():
			c.refuse(&driver.Refusal{Left: row.left, Holder: row.holder, Leaving: t.ledger.owes(key)})
		case row.fence > maxFence-t.block:
			c.refuse(classify("claim", errFenceMax))
		default: // free, but locked by somebody, or taken and left meanwhile
			c.refuse(&driver.Refusal{Busy: true})
		}
	}
}

func (t *attempt) grant(c *claimCall) {
	until := t.sent.Add(t.ttl)
	given := c.end(claimAnswer{grant: driver.Grant{
		Token: t.token,
		Fence: c.found.fence - t.block + 1,
		Until: until,
		Table: t.s.table,
	}})
	if !given { // the caller left while the claim was in flight
		t.giveBack(driver.Release{Key: c.claim.Key, Token: t.token, Until: until})
	}
}

// failed answers keys that were not ours before the statement that failed.
func (t *attempt) failed(keys []string, err error) {
	switch {
	case rolledBack(err):
		t.refuse(keys, &driver.Refusal{Busy: true})
	case proves(err):
		t.refuse(keys, classify("claim", err))
	case answered(err) && len(keys) > 1:
		// One row may be why: halve until it is found.
		t.settler.add(keys, t.token, t.notAfter)
		t.halve(keys)
	default:
		t.unknown(keys, err)
	}
}

func (t *attempt) halve(keys []string) {
	first, second := t.part.Add(1), t.part.Add(1)
	calls := make([]*claimCall, len(keys))
	for i, key := range keys {
		calls[i] = t.calls[key]
		calls[i].part = first
		if i >= len(keys)/2 {
			calls[i].part = second
		}
	}
	t.claims.add(calls...)
}

func (t *attempt) unknown(keys []string, err error) {
	t.settler.add(keys, t.token, t.notAfter)
	t.refuse(keys, unknown("claim", err))
}

func (t *attempt) refuse(keys []string, err error) {
	for _, key := range keys {
		t.calls[key].refuse(err)
	}
}

// whyMissing explains an insert without error after which rows are missing.
func (t *attempt) whyMissing(made int64) error {
	if made > 0 { // somebody deleted them
		return &driver.Refusal{Busy: true}
	}
	return t.explain(t.s, t.block)
}

// explain says why an insert made no row; it is never nil.
func (a *Authority) explain(s *session, block uint64) error {
	why, sent := errNoFloor, time.Now()
	err := s.query(a.timeout, func(rows *sql.Rows) error {
		var fence, start uint64
		var micros int64
		if err := rows.Scan(&fence, &start, &micros); err != nil {
			return err
		}
		s.clock.set(micros, sent)
		why = errLate
		if start > maxFence-block {
			why = errFenceMax
		}
		return nil
	}, a.tables.readFloor())
	if err != nil {
		return unreachable("claim", err) // the insert is known to have made nothing
	}
	return classify("claim", why)
}
