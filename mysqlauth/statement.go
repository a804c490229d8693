// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"math/bits"
	"strings"
)

// Every statement stands here with the rule it keeps. What holds for all:
//
//   - Times are the server's, compared and computed by it, and read as numbers
//     of microseconds: no time.Time is bound or scanned, so that time zones,
//     loc and parseTime mean nothing.
//   - Keys and tokens are bound as []byte: as text they would pass through a
//     character set.
//   - Open's own pool interpolates, which saves a round trip. For one that may
//     not, lists are padded to a power of two with their last element: it then
//     prepares at most ten forms of each statement, so that no statement cache on
//     the way fills.

// serverNow is the server's time in microseconds since 1970. In a statement
// that waits it is the time at which the statement began.
const serverNow = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"

// inTime has the time from which a statement refuses itself, in microseconds since
// 1970. In this form, of a time and not of a number, it is computed once and not
// for every row.
const inTime = "UTC_TIMESTAMP(6) < TIMESTAMP '1970-01-01 00:00:00' + INTERVAL ? MICROSECOND"

// maxBatch bounds the keys of a statement, padding not counted. It stays below
// the LIMIT of the subqueries, which is there for another reason.
const maxBatch = 500

// maxRenewals is the same for renewals: they come from a timer and not from
// callers who wait, so that few statements are worth more than short ones. It is
// that LIMIT.
const maxRenewals = 1000

// maxFence keeps fences within what every client language can hold.
const maxFence = 1<<63 - 1

// tables are the quoted names.
type tables struct {
	lease, floor, canary, rowlock, shard, version string
	// exact says that lists need no padding.
	exact bool
}

func newTables(prefix string) tables {
	return tables{
		lease:   quote(prefix + "lease"),
		floor:   quote(prefix + "floor"),
		canary:  quote(prefix + "canary"),
		rowlock: quote(prefix + "rowlock"),
		shard:   quote(prefix + "shard"),
		version: quote(prefix + "schema_version"),
	}
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// neverWaiting updates the rows that meet the condition and that no
// transaction has locked; it never waits for one that is locked. A plain
// UPDATE waits even when its WHERE is false, holding the rows before it, and
// one guarded transaction would stall every key of every process.
//
// LIMIT keeps MySQL from merging the subquery, which loses SKIP LOCKED; FORCE
// INDEX keeps MariaDB from scanning a small table, which waits for strangers;
// STRAIGHT_JOIN keeps both from starting at the other side.
func (t tables) neverWaiting(condition, set string) string {
	return "UPDATE (SELECT lock_key FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE " + condition +
		" LIMIT 1000 FOR UPDATE SKIP LOCKED) d STRAIGHT_JOIN " + t.lease +
		" l FORCE INDEX (PRIMARY) ON l.lock_key = d.lock_key SET " + set
}

// claim takes the rows that are free or expired. not_after makes one that
// arrives late refuse itself: a closed socket does not stop a statement.
//
// Args: n keys, the highest fence that leaves room for the block, not_after;
// block, token, holder, TTL in microseconds.
func (t tables) claim(n int) string { return t.claiming(n, "l.fence + ?") }

// claimAlone is claim for one key. Its answer says the fence, so that it need not
// be read back; it is 0 where no row was taken.
func (t tables) claimAlone() string { return t.claiming(1, "LAST_INSERT_ID(l.fence + ?)") }

func (t tables) claiming(n int, fence string) string {
	return t.neverWaiting(
		"lock_key IN ("+t.marks(n)+") AND (token IS NULL OR expires_at <= UTC_TIMESTAMP(6)) AND fence <= ? AND "+inTime,
		"l.fence = "+fence+", l.token = ?, l.holder = ?, "+
			"l.acquired_at = UTC_TIMESTAMP(6), l.expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND")
}

// insert makes the rows that are missing, all or none. The fence starts above
// the floor, which the sweeper raises before it lets go of a row, and above
// the server's time, so that a truncated table does not bring fences back.
//
// LOCK IN SHARE MODE makes READ COMMITTED lock the floor at all. CAST, without
// a length, keeps bytes that are not UTF-8 and gives ORDER BY the bytes' order
// instead of a collation's; UNION drops the padding.
//
// Args: token, block, holder, TTL in microseconds; n keys; not_after, the
// highest fence that leaves room for the block.
func (t tables) insert(n int) string {
	return "INSERT INTO " + t.lease + " (lock_key, token, fence, guard, holder, acquired_at, expires_at)" +
		" SELECT v.k, ?, " + fenceStart + " + ?, 0, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		" FROM " + t.floor + " f JOIN (SELECT CAST(? AS BINARY) AS k" + strings.Repeat(" UNION SELECT CAST(? AS BINARY)", t.padded(n)-1) + ") v" +
		" WHERE f.id = 1 AND " + inTime + " AND " + fenceStart + " <= ? ORDER BY v.k LOCK IN SHARE MODE"
}

const fenceStart = "GREATEST(f.fence, 1000 * " + serverNow + ")"

// readFloor explains an insert that made nothing: no row means no floor.
func (t tables) readFloor() string {
	return "SELECT f.fence, " + fenceStart + ", " + serverNow + " FROM " + t.floor + " f WHERE f.id = 1"
}

// read is how every outcome is learned; ownership is never concluded from a
// number of affected rows.
//
// Args: n keys.
func (t tables) read(n int) string {
	return "SELECT lock_key, token, fence, guard, holder, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), " +
		"TIMESTAMPDIFF(MICROSECOND, acquired_at, UTC_TIMESTAMP(6)), " + serverNow +
		" FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key IN (" + t.marks(n) + ")"
}

// readBack is as much of read as a claim needs of the rows it took.
//
// Args: n keys.
func (t tables) readBack(n int) string {
	return "SELECT lock_key, token, fence, " + serverNow +
		" FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key IN (" + t.marks(n) + ")"
}

// renew never takes time away: a renewal that waited on the server for a table
// lock has its beginning for its time, and may come after a younger one, but
// not by seconds. A date further ahead is what a clock left that was set back
// since; kept, it would block the key for as long.
//
// Its answer says the server's time, in place of a generated number.
//
// Args: n keys, n pairs, not_after; TTL in microseconds three times.
func (t tables) renew(n int) string {
	return t.neverWaiting(t.pairs(n)+" AND expires_at > UTC_TIMESTAMP(6) AND "+inTime,
		"l.expires_at = IF(LAST_INSERT_ID("+serverNow+") AND l.expires_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND + INTERVAL 5 SECOND,"+
			" UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,"+
			" GREATEST(l.expires_at, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND))")
}

// free is what it means to release: NULL is free, and the date is no date in
// the past, which the sweeper would take for a row long unused.
const free = "token = NULL, expires_at = UTC_TIMESTAMP(6)"

// release frees rows that are still ours. A row it changed is one it affected,
// under clientFoundRows too: the token was not NULL.
//
// guard becomes the batch's mark: nobody reads that column but to see that it
// changed, and claims leave it.
//
// Args: n keys, n pairs; mark.
func (t tables) release(n int) string {
	return t.neverWaiting(t.pairs(n)+" AND expires_at > UTC_TIMESTAMP(6)",
		"l.token = NULL, l.expires_at = UTC_TIMESTAMP(6), l.guard = ?")
}

// releaseWaiting is release for one row that a transaction has locked.
//
// Args: key, token.
func (t tables) releaseWaiting() string {
	return "UPDATE " + t.lease + " FORCE INDEX (PRIMARY) SET " + free +
		" WHERE lock_key = ? AND token = ? AND expires_at > UTC_TIMESTAMP(6)"
}

// keep is release for a lease that MinHold keeps held after it: under a token
// that nobody knows, until that long after the grant, or free when that has
// passed.
//
// Args: key, key, token; MinHold in microseconds, the new token, MinHold.
func (t tables) keep() string {
	return t.neverWaiting(t.pairs(1)+" AND expires_at > UTC_TIMESTAMP(6)",
		"l.token = IF(l.acquired_at + INTERVAL ? MICROSECOND > UTC_TIMESTAMP(6), ?, NULL), "+
			"l.expires_at = GREATEST(l.acquired_at + INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6))")
}

// keepWaiting is keep for a row that a transaction has locked.
//
// Args: MinHold in microseconds, the new token, MinHold; key, token.
func (t tables) keepWaiting() string {
	return "UPDATE " + t.lease + " FORCE INDEX (PRIMARY) SET " +
		"token = IF(acquired_at + INTERVAL ? MICROSECOND > UTC_TIMESTAMP(6), ?, NULL), " +
		"expires_at = GREATEST(acquired_at + INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6))" +
		" WHERE lock_key = ? AND token = ? AND expires_at > UTC_TIMESTAMP(6)"
}

// settle undoes claims of unknown outcome where no transaction has the row.
//
// Args: n keys, n pairs.
func (t tables) settle(n int) string {
	return t.neverWaiting(t.pairs(n), "l.token = NULL, l.expires_at = UTC_TIMESTAMP(6)")
}

// unlocked are the rows that nobody had locked at some instant of the read: no
// claim is under way on them. It locks them for as long, since a plain read
// tells nothing of locks.
//
// Args: n keys.
func (t tables) unlocked(n int) string {
	return "SELECT lock_key, token FROM " + t.lease + " FORCE INDEX (PRIMARY) WHERE lock_key IN (" + t.marks(n) +
		") LIMIT 1000 FOR UPDATE SKIP LOCKED"
}

// settleWaiting is settle for rows that are locked or not there. It waits, so
// that it comes after whatever is in flight.
//
// Args: n keys, n pairs.
func (t tables) settleWaiting(n int) string {
	return "UPDATE " + t.lease + " FORCE INDEX (PRIMARY) SET " + free + " WHERE " + t.pairs(n)
}

// pairs matches keys with their own tokens: two lists would match crosswise and
// free a successor's row. A token has sixteen bytes, so a key with its token
// behind it is no other pair's; MariaDB compares one value in half the time of
// two. The keys stand beside them because they are what the index knows.
func (t tables) pairs(n int) string {
	return "lock_key IN (" + t.marks(n) + ") AND CONCAT(lock_key, token) IN (" + t.marks(n) + ")"
}

// marks is a list of placeholders.
func (t tables) marks(n int) string { return list("?", t.padded(n)) }

func list(element string, n int) string { return strings.Repeat(element+", ", n-1) + element }

// padded is the length of a list of n.
func (t tables) padded(n int) int {
	if t.exact {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}
