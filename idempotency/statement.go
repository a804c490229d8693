// SPDX-License-Identifier: Apache-2.0

package idempotency

import "fmt"

// state of a row. A row of a [Guard.Once] is started only inside its transaction.
type state uint8

const (
	stateStarted   state = 1
	stateCompleted state = 2
	stateFailed    state = 3
	stateSpent     state = 4
)

// tables are the statements, with the names in place.
type tables struct {
	requests  string // quoted
	highWater string
}

func newTables(prefix string) tables {
	return tables{
		requests:  "`" + prefix + "idempotency`",
		highWater: "`" + prefix + "idempotency_fence`",
	}
}

const byKey = " WHERE namespace = ? AND scope = ? AND request_key = ?"

// look reads the newest committed row. It locks, because a plain read may be as
// old as its transaction, and does not wait.
//
// Args: key.
func (t tables) look() string {
	return "SELECT state, fingerprint, attempt, attempts, recovery_point, codec, result, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', completed_at)," +
		" expires_at <= UTC_TIMESTAMP(6), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), in_progress_until), @@autocommit" +
		" FROM " + t.requests + byKey + " FOR UPDATE NOWAIT"
}

// insert begins a request that has no row. It waits for others that do.
//
// Args: key, fingerprint, attempt, attempt time in microseconds or NULL, codec,
// ttl in microseconds.
func (t tables) insert() string {
	return "INSERT INTO " + t.requests +
		" (namespace, scope, request_key, state, fingerprint, attempt, attempts, recovery_point, in_progress_until, codec, result, created_at, completed_at, expires_at)" +
		fmt.Sprintf(" VALUES (?, ?, ?, %d, ?, ?, 1, '', UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, NULL, UTC_TIMESTAMP(6), NULL, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)", stateStarted)
}

// renewExpired begins a request in the row of one that is past its retention.
//
// Args: as insert, but for the key, which comes last.
func (t tables) renewExpired() string {
	return "UPDATE " + t.requests +
		fmt.Sprintf(" SET state = %d, fingerprint = ?, attempt = ?, attempts = 1, recovery_point = '', in_progress_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,", stateStarted) +
		" codec = ?, result = NULL, created_at = UTC_TIMESTAMP(6), completed_at = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		byKey + fmt.Sprintf(" AND expires_at <= UTC_TIMESTAMP(6) AND state <> %d", stateSpent)
}

// finish stores the answer of the live attempt, and nobody else's. The answer is
// kept from now on for as long as was asked.
//
// Args: state, result, ttl in microseconds, key, attempt.
func (t tables) finish() string {
	return "UPDATE " + t.requests +
		" SET state = ?, result = ?, in_progress_until = NULL, completed_at = UTC_TIMESTAMP(6), expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		byKey + fmt.Sprintf(" AND attempt = ? AND state = %d", stateStarted)
}

// raise lifts the highest fence seen of a lock's key, and locks it until the
// transaction ends.
//
// Args: lock key, fence.
func (t tables) raise() string {
	return "INSERT INTO " + t.highWater + " (lock_key, fence, raised_at) VALUES (?, ?, UTC_TIMESTAMP(6))" +
		" ON DUPLICATE KEY UPDATE raised_at = IF(fence < VALUES(fence), VALUES(raised_at), raised_at), fence = GREATEST(fence, VALUES(fence))"
}

// highest reads what stands after raise.
//
// Args: lock key.
func (t tables) highest() string {
	return "SELECT fence FROM " + t.highWater + " WHERE lock_key = ? FOR UPDATE"
}
