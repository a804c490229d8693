// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

// ErrNoKey means that the lease table has no row of that key.
var ErrNoKey = errors.New("mysqlauth: no such key")

// operatorLimit leaves the server time to say that a row is locked: an operator
// should not be told "unknown".
const operatorLimit = 3 * time.Second

// maxPage bounds a page of List.
const maxPage = 1000

// Record is a row as an operator sees it. It shows no token: who has one can
// release.
type Record struct {
	Key    string // with its namespace
	Held   bool
	Fence  uint64
	Holder string // of the lease that is held, or was last
	// Age is the time since the last grant, Left what remains of a lease that
	// is held; both by the server's clock.
	Age, Left time.Duration
}

// List returns up to limit records, at most 1,000, of the keys that begin with
// prefix and come after the key given, in the order of their bytes; pass the
// last key of a page to get the next. Keys carry their namespace.
func (a *Authority) List(ctx context.Context, prefix, after string, limit int) ([]Record, error) {
	if limit < 1 || limit > maxPage {
		return nil, fmt.Errorf("%w: a page of %d records, 1 to %d are allowed", ErrOption, limit, maxPage)
	}
	statement, args := a.tables.list([]byte(prefix), []byte(after), limit)
	return a.records(ctx, statement, args...)
}

// Show returns the record of a key. Errors: [ErrNoKey], or a classified one.
func (a *Authority) Show(ctx context.Context, key string) (Record, error) {
	if err := checkKey(key); err != nil {
		return Record{}, classify("show", err)
	}
	found, err := a.records(ctx, a.tables.show(), []byte(key))
	if err != nil {
		return Record{}, err
	}
	if len(found) == 0 {
		return Record{}, fmt.Errorf("%w: %q", ErrNoKey, key)
	}
	return found[0], nil
}

// ForceRelease takes a key's lease away for an operator, whose name it logs.
//
// It revokes: the token is replaced by one that nobody knows, and the expiry
// stays. The old holder is told at its next renewal, its guarded writes are
// refused from now on, and the key is granted again when the lease expires, so
// that the old holder and the next never overlap.
//
// With now the key is free at once. That suspends promise P4: the old holder
// may go on, unwarned, beside the next one until its next renewal; only its
// guarded writes are refused. The caller wakes the waiters through the filter.
//
// It returns the record as it was before. Errors: [ErrNoKey], or a classified
// one; after an unknown outcome Show tells.
func (a *Authority) ForceRelease(ctx context.Context, key, who string, now bool) (Record, error) {
	before, err := a.Show(ctx, key)
	if err != nil {
		return Record{}, err
	}
	statement := a.tables.revoke()
	nobodys := driver.NewToken()
	args := []any{nobodys[:], []byte(key)}
	if now {
		statement, args = a.tables.freeNow(), []any{[]byte(key)}
	}
	err = a.outside(ctx, "force-release", func(s *session) error {
		_, err := s.exec(operatorLimit, statement, args...)
		return err
	})
	if err != nil {
		return before, err
	}
	a.log.Warn("lease taken away by an operator", zap.String("by", who), zap.String("key", a.opts.shown(key)),
		zap.String("holder", before.Holder), zap.Bool("now", now), zap.Duration("left", before.Left))
	return before, nil
}

// outside runs a statement on a borrowed session.
func (a *Authority) outside(ctx context.Context, op string, run func(*session) error) error {
	if !a.ledger.enter() {
		return classify(op, ErrClosed)
	}
	defer a.ledger.leave()
	s, err := a.sessions.borrow(ctx, "admin", a.timeout)
	if err != nil {
		return classify(op, err)
	}
	defer a.sessions.giveBackBorrowed(s)
	if err := run(s); err != nil {
		return unknownUnlessProved(op, err)
	}
	return nil
}

func (a *Authority) records(ctx context.Context, statement string, args ...any) (found []Record, err error) {
	err = a.outside(ctx, "list", func(s *session) error {
		found = nil
		return s.query(a.timeout, func(rows *sql.Rows) error {
			var key, holder sql.RawBytes
			var r Record
			var age, left int64
			if err := rows.Scan(&key, &r.Held, &r.Fence, &holder, &age, &left); err != nil {
				return err
			}
			r.Key, r.Holder = string(key), string(holder)
			r.Age = time.Duration(age) * time.Microsecond
			if r.Held {
				r.Left = time.Duration(left) * time.Microsecond
			}
			found = append(found, r)
			return nil
		}, statement, args...)
	})
	return found, err
}

const recordColumns = "lock_key, token IS NOT NULL AND expires_at > UTC_TIMESTAMP(6), fence, holder, " +
	"TIMESTAMPDIFF(MICROSECOND, acquired_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)"

func (t tables) show() string {
	return "SELECT " + recordColumns + " FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key = ?"
}

// list reads a range of the primary key: a LIKE would ask a collation.
func (t tables) list(prefix, after []byte, limit int) (string, []any) {
	where, args := "lock_key > ? AND lock_key >= ?", []any{after, prefix}
	if end := prefixEnd(prefix); end != nil {
		where, args = where+" AND lock_key < ?", append(args, end)
	}
	return "SELECT " + recordColumns + " FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE " + where + " ORDER BY lock_key LIMIT ?",
		append(args, limit)
}

// prefixEnd returns the least key above all that begin with prefix, nil when
// there is none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.TrimRight(bytes.Clone(prefix), "\xff")
	if len(end) == 0 {
		return nil
	}
	end[len(end)-1]++
	return end
}

// revoke waits for a row that a transaction has locked: an operator wants an
// answer.
//
// Args: the new token, key.
func (t tables) revoke() string {
	return "UPDATE " + t.lease + " FORCE INDEX (PRIMARY) SET token = ? WHERE lock_key = ? AND token IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)"
}

// Args: key.
func (t tables) freeNow() string {
	return "UPDATE " + t.lease + " FORCE INDEX (PRIMARY) SET " + free + " WHERE lock_key = ? AND token IS NOT NULL"
}
