// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import "strings"

// The statements of the start-up check and of the sweeper; statement.go says
// what holds for all.

// names are the tables' names without quotes, the lease table's first.
func (t tables) names() []any {
	var names []any
	for _, name := range []string{t.lease, t.floor, t.canary, t.version} {
		names = append(names, strings.Trim(name, "`"))
	}
	return names
}

// The canary's statements compare the server that wrote with the one that
// reads. Args: id; beat, id; id; id.

func (t tables) canaryInsert() string {
	return "INSERT INTO " + t.canary + " (id, server_id, beat, written_at) VALUES (?, @@server_id, 0, UTC_TIMESTAMP(6))"
}

func (t tables) canaryUpdate() string {
	return "UPDATE " + t.canary + " SET server_id = @@server_id, beat = ?, written_at = UTC_TIMESTAMP(6) WHERE id = ?"
}

func (t tables) canaryRead() string {
	return "SELECT server_id, @@server_id, beat FROM " + t.canary + " WHERE id = ?"
}

func (t tables) canaryDelete() string { return "DELETE FROM " + t.canary + " WHERE id = ?" }

// canaryStale removes rows of checks whose process died.
func (t tables) canaryStale() string {
	return "DELETE FROM " + t.canary + " WHERE written_at < UTC_TIMESTAMP(6) - INTERVAL 1 HOUR"
}

// unused is what makes a row the sweeper's.
//
// Args: retention in seconds.
const unused = "expires_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND"

// window is the last key of the next windowRows rows.
//
// Args: after, rows but one.
func (t tables) window() string {
	return "SELECT lock_key FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key > ? ORDER BY lock_key LIMIT 1 OFFSET ?"
}

// count is how many rows a window has.
//
// Args: after, last.
func (t tables) count() string {
	return "SELECT COUNT(*) FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key > ? AND lock_key <= ?"
}

// candidates are the unused rows of a window. This read locks nothing: a
// sweeper that locked the rows it passes would show live ones as busy.
//
// Args: after, last, retention, most.
func (t tables) candidates() string {
	return "SELECT lock_key, token FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key > ? AND lock_key <= ? AND " + unused +
		" ORDER BY lock_key LIMIT ?"
}

// retire releases tokens that expired longer ago than the retention. The rows
// go one retention later.
//
// Args: n keys, n pairs, retention.
func (t tables) retire(n int) string {
	return t.neverWaiting(t.pairs(n)+" AND "+unused, "l.token = NULL, l.expires_at = UTC_TIMESTAMP(6)")
}

// doomed locks the candidates that are still free and unused.
//
// Args: n keys, retention.
func (t tables) doomed(n int) string {
	return "SELECT lock_key, fence FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key IN (" + t.marks(n) + ") AND token IS NULL AND " +
		unused + " ORDER BY lock_key LIMIT 1000 FOR UPDATE SKIP LOCKED"
}

// remove deletes exactly the rows that doomed locked. It looks each up by its
// key: a DELETE with a list scans a small table on both engines, FORCE INDEX
// or not, and waits for rows that others have locked.
//
// Args: n keys.
func (t tables) remove(n int) string {
	return "DELETE l FROM (SELECT lock_key FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key IN (" + t.marks(n) +
		") LIMIT 1000 FOR UPDATE SKIP LOCKED) d STRAIGHT_JOIN " + t.lease + " l FORCE INDEX (PRIMARY) ON l.lock_key = d.lock_key"
}

// lockFloor comes after the rows, as a claim that makes a row locks the floor
// while no row is there.
func (t tables) lockFloor() string {
	return "SELECT fence FROM " + t.floor + " WHERE id = 1 FOR UPDATE"
}

// raiseFloor comes last.
//
// Args: the highest fence removed.
func (t tables) raiseFloor() string {
	return "UPDATE " + t.floor + " SET fence = GREATEST(fence, ?) WHERE id = 1"
}
