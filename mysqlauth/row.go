// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// row is what a read found under a key.
type row struct {
	key    string
	token  driver.Token // zero when NULL: no claim draws zero
	fence  uint64
	guard  uint64
	holder string
	left   time.Duration // until expires_at; negative when past
	age    time.Duration // since the last claim that was granted
}

func (r row) held() bool { return !r.token.IsZero() && r.left > 0 }

// reading is the answer to a read.
type reading struct {
	rows map[string]row // a missing key has none
	sent time.Time      // before the request was sent
}

// read reads keys, and the server's clock on the way.
func (s *session) read(limit time.Duration, keys []string) (reading, error) {
	r := reading{rows: make(map[string]row, len(keys)), sent: time.Now()}
	var key, token, holder sql.RawBytes // here, so that not every row has its own
	var fence, guard uint64
	var left, age, micros int64
	err := s.query(limit, func(rows *sql.Rows) error {
		if err := rows.Scan(&key, &token, &fence, &guard, &holder, &left, &age, &micros); err != nil {
			return err
		}
		found := row{
			key: string(key), fence: fence, guard: guard, holder: string(holder),
			left: time.Duration(left) * time.Microsecond, age: time.Duration(age) * time.Microsecond,
		}
		copy(found.token[:], token)
		r.rows[found.key] = found
		s.clock.set(micros, r.sent)
		return nil
	}, s.from.tables.read(len(keys)), s.from.tables.keyArgs(keys)...)
	return r, err
}

// lossOf says how a lease was lost, or nil while it is ours.
func lossOf(r reading, key string, token driver.Token) *driver.Loss {
	row, found := r.rows[key]
	switch {
	case !found:
		return &driver.Loss{Reason: driver.LossFreed}
	case row.token.IsZero():
		return &driver.Loss{Reason: driver.LossFreed, Fence: row.fence}
	case row.token != token:
		return &driver.Loss{Reason: driver.LossTaken, Fence: row.fence}
	case row.left <= 0:
		return &driver.Loss{Reason: driver.LossExpired, Fence: row.fence}
	}
	return nil
}
