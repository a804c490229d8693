// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
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
	open := make([]string, len(batch))
	for i, c := range batch {
		open[i] = c.claim.Key
		t.calls[c.claim.Key] = c
	}
	t.run(sortedKeys(open))
}

// run takes what is free, learns what became of it, and makes the rows that
// are missing. What is open is not ours before each round.
func (t *attempt) run(open []string) {
	for range rounds {
		if _, err := t.send(func() (int64, error) { return t.update(open) }); err != nil {
			t.failed(open, err)
			return
		}
		missing, err := t.learn(open)
		if err != nil || len(missing) == 0 {
			return
		}
		open = missing
		made, err := t.send(func() (int64, error) { return t.insert(open) })
		switch {
		case err == nil:
			if open, err = t.learn(open); err == nil && len(open) > 0 {
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
func (t *attempt) send(statement func() (int64, error)) (affected int64, err error) {
	err = t.s.again(&t.retried, func() error {
		t.sent = time.Now()
		t.notAfter = t.s.clock.at(t.sent) + t.timeout.Microseconds()
		affected, err = statement()
		return err
	})
	return affected, err
}

func (t *attempt) update(keys []string) (int64, error) {
	args := append(keyArgs(keys), maxFence-t.block, t.notAfter, t.block, t.token[:], t.holder, t.ttl.Microseconds())
	return t.s.exec(t.timeout, t.tables.claim(len(keys)), args...)
}

func (t *attempt) insert(keys []string) (int64, error) {
	args := append([]any{t.token[:], t.block, t.holder, t.ttl.Microseconds()}, keyArgs(keys)...)
	args = append(args, t.notAfter, maxFence-t.block)
	// It may wait for the floor or for another's row, which is contention: the
	// server's answer to that must come before the limit does.
	return t.s.exec(waitLimit, t.tables.insert(len(keys)), args...)
}

// learn reads the keys back and answers every call whose row is there. When
// it fails they are answered too: nothing is known about any.
func (t *attempt) learn(keys []string) (missing []string, err error) {
	r, err := t.s.read(t.timeout, keys)
	if err != nil {
		t.unknown(keys, err)
		return nil, err
	}
	for _, key := range keys {
		row, found := r.rows[key]
		switch {
		case !found:
			missing = append(missing, key)
		case row.token == t.token:
			t.grant(key, row)
		case row.held():
			t.calls[key].refuse(&driver.Refusal{Left: row.left, Holder: row.holder, Leaving: t.ledger.owes(key)})
		case row.fence > maxFence-t.block:
			t.calls[key].refuse(classify("claim", errFenceMax))
		default: // free, but locked by somebody, or taken and left meanwhile
			t.calls[key].refuse(&driver.Refusal{Busy: true})
		}
	}
	return missing, nil
}

func (t *attempt) grant(key string, row row) {
	until := t.sent.Add(t.ttl)
	given := t.calls[key].end(claimAnswer{grant: driver.Grant{
		Token: t.token,
		Fence: row.fence - t.block + 1,
		Until: until,
		Table: t.s.table,
	}})
	if !given { // the caller left while the claim was in flight
		t.giveBack(driver.Release{Key: key, Token: t.token, Until: until})
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
