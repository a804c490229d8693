// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// Every statement looks its rows up by key: the rows it reads grow with the
// keys it names and not with the table. A list that lost its range (MariaDB's
// UPDATE with one pair and no list of keys beside it) reads all 3,000.
func TestStatements_readOnlyTheirRows(t *testing.T) {
	const farAway = int64(3_000_000_000_000_000) // in 2065
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		var keys []string
		for i := range 3000 {
			keys = append(keys, fmt.Sprintf("ns/k%04d", i))
		}
		if err := a.Prepare(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		c := prepared(t, admin)
		token := driver.NewToken()
		mustExec(t, c, "UPDATE lease SET token = ?, expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR", token[:])
		for _, n := range []int{1, 2, 7, 500} {
			some, pairs := keys[1000:1000+n], make([]pair, n)
			for i, key := range some {
				pairs[i] = pair{key, token}
			}
			for name, do := range map[string]struct {
				statement string
				args      []any
			}{
				"claim":    {a.tables.claim(n), append(a.tables.keyArgs(some), uint64(maxFence), farAway, 1, token[:], []byte{}, 1)},
				"alone":    {a.tables.claimAlone(), append(a.tables.keyArgs(some[:1]), uint64(maxFence), farAway, 1, token[:], []byte{}, 1)},
				"readBack": {a.tables.readBack(n), a.tables.keyArgs(some)},
				"read":     {a.tables.read(n), a.tables.keyArgs(some)},
				"renew":    {a.tables.renew(n), a.tables.renewArgs(pairs, farAway, time.Hour)},
				"release":  {a.tables.release(n), append(a.tables.pairArgs(pairs), 1)},
				"settle":   {a.tables.settle(n), a.tables.pairArgs(pairs)},
				"settled":  {a.tables.settleWaiting(n), a.tables.pairArgs(pairs)},
				"unlocked": {a.tables.unlocked(n), a.tables.keyArgs(some)},
				"freed":    {a.tables.releaseWaiting(), []any{[]byte(some[0]), token[:]}},
				"keep":     {a.tables.keep(), append(a.tables.pairArgs(pairs[:1]), 1, token[:], 1)},
				"kept":     {a.tables.keepWaiting(), []any{1, token[:], 1, []byte(some[0]), token[:]}},
				"retire":   {a.tables.retire(n), append(a.tables.pairArgs(pairs), 3600)},
				"doomed":   {a.tables.doomed(n), append(a.tables.keyArgs(some), 3600)},
				"remove":   {a.tables.remove(n), a.tables.keyArgs(some)},
				"floor":    {a.tables.readFloor(), nil},
				"raise":    {a.tables.raiseFloor(), []any{1}},
				"insert":   {a.tables.insert(1), []any{nil, 0, []byte{}, 0, []byte(fmt.Sprintf("ns/new%d", n)), int64(3_000_000_000_000_000), uint64(maxFence)}},
				"stale":    {a.tables.canaryStale(), nil},
				"canaries": {a.tables.canaryRead(), []any{token[:]}},
			} {
				mustExec(t, c, "START TRANSACTION")
				mustExec(t, c, "FLUSH STATUS")
				rows, err := c.QueryContext(t.Context(), do.statement, do.args...)
				if err != nil {
					t.Fatalf("%s of %d: %v", name, n, err)
				}
				for rows.Next() { // only their number on the server counts
				}
				if err := rows.Close(); err != nil {
					t.Fatal(err)
				}
				if read := rowsRead(t, c); read > 10*a.tables.padded(n)+20 {
					t.Errorf("%s of %d keys read %d rows of 3,000", name, n, read)
				}
				mustExec(t, c, "ROLLBACK")
			}
		}
	})
}

// rowsRead counts what the session read since FLUSH STATUS, temporary tables
// included.
func rowsRead(t *testing.T, c *sql.Conn) (total int) {
	t.Helper()
	rows, err := c.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		total += n
	}
	return total
}
