// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"bytes"
	"database/sql"
	"time"
)

// lastKey is not below any key.
var lastKey = bytes.Repeat([]byte{0xff}, maxKey)

// sweepStep is the sweeper's work on one window of rows.
type sweepStep struct {
	s         *session
	limit     time.Duration
	retention int64 // seconds
	after     []byte
	until     []byte // where the window ends; nil: find looks
	most      int    // rows of the transaction

	reached []byte // not beyond until
	free    []string
	expired []pair
}

// find reads which rows of the window are unused.
func (w *sweepStep) find() error {
	tables := w.s.from.tables
	if w.after == nil {
		w.after = []byte{} // NULL is not below any key
	}
	if w.until == nil {
		w.until = lastKey
		err := w.s.query(w.limit, func(rows *sql.Rows) error { return rows.Scan(&w.until) },
			tables.window(), w.after, windowRows-1)
		if err != nil {
			return err
		}
	}
	w.reached = w.until
	var found int
	var last []byte
	err := w.s.query(w.limit, func(rows *sql.Rows) error {
		var key, token []byte
		if err := rows.Scan(&key, &token); err != nil {
			return err
		}
		found, last = found+1, key
		if token == nil {
			w.free = append(w.free, string(key))
			return nil
		}
		p := pair{key: string(key)}
		copy(p.token[:], token)
		w.expired = append(w.expired, p)
		return nil
	}, tables.candidates(), w.after, w.until, w.retention, w.most)
	if found == w.most {
		w.reached = last // there may be more behind
	}
	return err
}

// count reads how many rows there are up to where the step has come.
func (w *sweepStep) count() (rows int, err error) {
	err = w.s.query(w.limit, func(r *sql.Rows) error { return r.Scan(&rows) }, w.s.from.tables.count(), w.after, w.reached)
	return rows, err
}

// retire releases tokens that expired longer ago than the retention.
func (w *sweepStep) retire() error {
	if len(w.expired) == 0 {
		return nil
	}
	_, err := w.s.exec(w.limit, w.s.from.tables.retire(len(w.expired)), append(w.s.from.tables.pairArgs(w.expired), w.retention)...)
	return err
}

// remove deletes what is still free and unused, and raises the floor before
// that becomes visible, so that no row begins again below its old fence.
func (w *sweepStep) remove() (removed int, err error) {
	if len(w.free) == 0 {
		return 0, nil
	}
	defer func() {
		if err != nil {
			w.s.bad = true // the server rolls back when the connection ends
		}
	}()
	// A process that vanishes here would hold the floor, and with it every key
	// never seen before, for the server's wait_timeout: eight hours by default.
	if _, err := w.s.exec(w.limit, "SET SESSION wait_timeout = 2"); err != nil {
		return 0, err
	}
	if _, err := w.s.exec(w.limit, "START TRANSACTION"); err != nil {
		return 0, err
	}
	tables := w.s.from.tables
	var keys []string
	var highest uint64
	err = w.s.query(w.limit, func(rows *sql.Rows) error {
		var key []byte
		var fence uint64
		err := rows.Scan(&key, &fence)
		keys, highest = append(keys, string(key)), max(highest, fence)
		return err
	}, tables.doomed(len(w.free)), append(w.s.from.tables.keyArgs(w.free), w.retention)...)
	if err != nil {
		return 0, err
	}
	if len(keys) > 0 {
		gone, err := w.s.exec(w.limit, tables.remove(len(keys)), w.s.from.tables.keyArgs(keys)...)
		if err != nil {
			return 0, err
		}
		removed = int(gone)
		if err := w.raiseFloor(highest); err != nil {
			return 0, err
		}
	}
	if _, err = w.s.exec(w.limit, "COMMIT"); err != nil {
		return removed, err
	}
	_, err = w.s.exec(w.limit, "SET SESSION wait_timeout = DEFAULT")
	return removed, err
}

func (w *sweepStep) raiseFloor(highest uint64) error {
	tables := w.s.from.tables
	found := false
	err := w.s.query(w.limit, func(rows *sql.Rows) error {
		found = true
		var fence uint64
		return rows.Scan(&fence)
	}, tables.lockFloor())
	if err != nil {
		return err
	}
	if !found {
		return errNoFloor // the rows stay
	}
	_, err = w.s.exec(w.limit, tables.raiseFloor(), highest)
	return err
}
