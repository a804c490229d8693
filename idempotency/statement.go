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
	return t.read() + " FOR UPDATE NOWAIT"
}

// lookAgain reads a row that an insert has met, and locked with others like it.
//
// Args: key.
func (t tables) lookAgain() string { return t.read() + " LOCK IN SHARE MODE" }

func (t tables) read() string {
	return "SELECT state, fingerprint, attempt, attempts, seed, recovery_point, codec, result, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', completed_at)," +
		" expires_at <= UTC_TIMESTAMP(6), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), in_progress_until)" +
		" FROM " + t.requests + byKey
}

// insert begins a request that has no row. It waits for others that do.
//
// Args: key, fingerprint, attempt, seed, attempt time in microseconds or NULL,
// codec, ttl in microseconds.
func (t tables) insert() string {
	return "INSERT INTO " + t.requests +
		" (namespace, scope, request_key, state, fingerprint, attempt, attempts, seed, recovery_point, in_progress_until, codec, result, created_at, completed_at, expires_at)" +
		fmt.Sprintf(" VALUES (?, ?, ?, %d, ?, ?, 1, ?, '', UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, NULL, UTC_TIMESTAMP(6), NULL, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)", stateStarted)
}

// renewExpired begins a request in the row of one that is past its retention.
//
// Args: as insert, but for the key, which comes last.
func (t tables) renewExpired() string {
	return "UPDATE " + t.requests +
		fmt.Sprintf(" SET state = %d, fingerprint = ?, attempt = ?, attempts = 1, seed = ?, recovery_point = '', in_progress_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,", stateStarted) +
		" codec = ?, result = NULL, created_at = UTC_TIMESTAMP(6), completed_at = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		byKey + fmt.Sprintf(" AND expires_at <= UTC_TIMESTAMP(6) AND state <> %d AND (in_progress_until IS NULL OR in_progress_until <= UTC_TIMESTAMP(6))", stateSpent)
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

// takeOver goes on with a request whose attempt has ended or used up its time.
//
// Args: attempt, attempt time and ttl in microseconds, key.
func (t tables) takeOver() string {
	return "UPDATE " + t.requests +
		" SET attempt = ?, attempts = attempts + 1, in_progress_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		byKey + fmt.Sprintf(" AND state = %d AND (attempt IS NULL OR in_progress_until <= UTC_TIMESTAMP(6))", stateStarted)
}

// advance reaches a recovery point, and gives the next step its time.
//
// Args: recovery point, what the step returned, attempt time and ttl in
// microseconds, key, attempt.
func (t tables) advance() string {
	return "UPDATE " + t.requests +
		" SET recovery_point = ?, result = ?, in_progress_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		byKey + fmt.Sprintf(" AND attempt = ? AND state = %d", stateStarted)
}

// leave lets the next attempt go on at once.
//
// Args: key, attempt.
func (t tables) leave() string {
	return "UPDATE " + t.requests + " SET attempt = NULL, in_progress_until = NULL" +
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
