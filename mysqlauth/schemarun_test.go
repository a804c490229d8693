// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// Twenty processes start together. The statement that may not be repeated
// shows that one after another was let in, and asked again what was left.
func TestEnsureSchema_twentyAtOnce(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		all := upTo(t, 4, "")
		two := &all[len(all)-2]
		two.statements = slices.Insert(slices.Clone(two.statements), 0, "UPDATE floor SET fence = fence + 1")
		fromMany(t, d, func(db *sql.DB) error { return ensureSchema(t.Context(), db, "", all) })
		admin := openAdmin(t, d)
		var fence int
		if err := admin.QueryRowContext(t.Context(), "SELECT fence FROM floor").Scan(&fence); err != nil || fence != 1 {
			t.Errorf("migration 3 ran %d times, %v", fence, err)
		}
		if got := versionsOf(t, admin, ""); got != "1,2,3,4" {
			t.Errorf("versions %s", got)
		}
	})
}

// Named locks are a node's own in a Galera cluster: without one everybody runs
// every statement.
func TestEnsureSchema_twentyAtOnce_withoutTheNamedLock(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		all := upTo(t, 3, "")
		fromMany(t, d, func(db *sql.DB) error {
			conn, err := db.Conn(t.Context())
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // of no interest
			for _, statement := range preparations {
				if _, err := conn.ExecContext(t.Context(), statement); err != nil {
					return err
				}
			}
			return migrate(t.Context(), conn, all)
		})
		single := d.Server().CreateDatabase(t)
		mustEnsure(t, openAdmin(t, single), all)
		if got, want := effect(t, openAdmin(t, d)), effect(t, openAdmin(t, single)); got != want {
			t.Errorf("twenty make\n%s\none\n%s", got, want)
		}
	})
}

func fromMany(t *testing.T, d *stack.Database, call func(*sql.DB) error) {
	t.Helper()
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range 20 {
		db := openAdmin(t, d)
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			<-begin
			if err := call(db); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	wg.Wait()
}

// A process that died left any number of statements behind.
func TestEnsureSchema_afterADeathAtEachStatement(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		all := upTo(t, 4, "")
		admin := openAdmin(t, d)
		mustEnsure(t, admin, all)
		want := effect(t, admin)
		var statements []string
		for _, m := range all {
			statements = append(statements, m.statements...)
		}
		for died := range len(statements) + 1 {
			mustExec(t, admin, "DROP TABLE lease, floor, canary, rowlock, shard, schema_version, lease_note")
			for _, statement := range statements[:died] {
				mustExec(t, admin, statement)
			}
			if died < len(statements) { // DROP needs all of them
				mustEnsure(t, admin, all)
			}
			if got := effect(t, admin); got != want {
				t.Errorf("after %d of %d statements:\n%s\nwant\n%s", died, len(statements), got, want)
			}
		}
	})
}

// Who is cut off in the middle leaves no lock that the next would wait for.
func TestEnsureSchema_killedInTheMiddle(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		proxy := proxied(t, d)
		cut, err := sql.Open("mysql", strings.Replace(d.AdminDSN(), d.Server().Addr(), proxy.Addr(), 1))
		if err != nil {
			t.Fatal(err)
		}
		defer cut.Close() //nolint:errcheck // of no interest
		proxy.LoseReply(1, func(r stack.Request) bool { return r.Has("CREATE TABLE IF NOT EXISTS `canary`") }, stack.HangUp)
		if err := EnsureSchema(t.Context(), cut); err == nil {
			t.Error("no error for who was cut off")
		}
		if err := EnsureSchema(t.Context(), openAdmin(t, d)); err != nil {
			t.Error(err)
		}
		if err := open(t, d.DSN(), WithTimeout(busyLimit)).Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
	})
}

// Releases side by side: this one on schemas before and after its own.
func TestCheck_schemasOfOtherReleases(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		g := mustClaim(t, a, claimOf("ns/held"))
		check := func(when, want, advice string) {
			t.Helper()
			err := a.Check(t.Context())
			if want == "" {
				if err != nil {
					t.Errorf("%s: %v", when, err)
				}
				return
			}
			var classified *driver.Error
			if !errors.As(err, &classified) || classified.Class != driver.ClassConfig ||
				!strings.Contains(err.Error(), want) || !strings.Contains(classified.Advice, advice) {
				t.Errorf("%s: %v; want %q, advice %q", when, err, want, advice)
			}
		}
		mustExec(t, admin, "INSERT INTO schema_version (version, applied_at) VALUES (3, UTC_TIMESTAMP(6))")
		check("no version says who reads it", "only those from 3 on", "deploy")
		mustExec(t, admin, "DELETE FROM schema_version WHERE version = 3")

		mustEnsure(t, admin, upTo(t, 3, ""))
		check("a schema this release can read", "", "")
		if g := renewOne(t, a, "ns/held", g, 10*time.Second); g.Err != nil {
			t.Errorf("renewal: %v", g.Err)
		}
		mustRelease(t, a, "ns/held", g)
		mustRelease(t, a, "ns/new", mustClaim(t, a, claimOf("ns/new")))
		mustExec(t, admin, "DROP TABLE canary")
		if err := EnsureSchema(t.Context(), admin); err != nil {
			t.Fatal(err)
		}
		check("EnsureSchema does nothing on a later schema", "table canary is missing", "")
		mustExec(t, admin, "CREATE TABLE canary (id BINARY(16) NOT NULL PRIMARY KEY, server_id BIGINT UNSIGNED NOT NULL, "+
			"beat INT NOT NULL, written_at DATETIME(6) NOT NULL) ENGINE = InnoDB")
		check("the schema mended", "", "")

		mustEnsure(t, admin, upTo(t, 4, ""))
		check("a schema only the release before can read", "only those from 3 on", "deploy")
		mustEnsure(t, admin, upTo(t, 5, ""))
		check("a version that does not say", "only those from 5 on", "deploy")
		mustExec(t, admin, "UPDATE schema_version SET readable_by = 1 WHERE version = 5")
		check("what a later version says undoes nothing", "only those from 3 on", "deploy")

		mustExec(t, admin, "DELETE FROM schema_version")
		check("a schema before this release", "version 0, this driver needs 2", "EnsureSchema")
	})
}

// Migrating does not disturb who locks: no error reaches them, and a lease
// held across it stays its holder's.
func TestEnsureSchema_whileOthersLock(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		held := mustClaim(t, a, claimOf("ns/held"))
		stop, rounds := make(chan struct{}), make([]int, 8)
		var wg sync.WaitGroup
		for i := range rounds {
			key := "ns/k" + string(rune('0'+i))
			wg.Go(func() {
				for fence := uint64(0); ; rounds[i]++ {
					select {
					case <-stop:
						return
					default:
					}
					g, err := a.Claim(t.Context(), claimOf(key))
					if err != nil || g.Fence <= fence {
						t.Errorf("claim: fence %d after %d, %v", g.Fence, fence, err)
						return
					}
					fence = g.Fence
					if err := a.Renew(t.Context(), []driver.Renewal{{Key: key, Token: g.Token, TTL: 10 * time.Second, Until: g.Until}})[0].Err; err != nil {
						t.Errorf("renewal: %v", err)
					}
					if err := a.Release(t.Context(), releaseOf(key, g)); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
		mustEnsure(t, admin, upTo(t, 3, ""))
		for _, statement := range []string{"ADD COLUMN more INT NOT NULL DEFAULT 5", "ADD COLUMN yet VARBINARY(9) NULL", "FORCE"} {
			mustExec(t, admin, "ALTER TABLE lease "+statement)
		}
		close(stop)
		wg.Wait()
		if n := slices.Min(rounds); n < 1 {
			t.Errorf("a worker came round %d times", n)
		}
		if renewed := renewOne(t, a, "ns/held", held, 10*time.Second); renewed.Err != nil {
			t.Errorf("renewal of what was held: %v", renewed.Err)
		}
		mustRelease(t, a, "ns/held", held)
	})
}

// A transaction that stays open keeps a change to its table waiting, and
// everybody behind it: for a second at a time, so that leases outlive it and
// callers are at worst told that the lock is unavailable or held, or that a
// release goes on without them.
func TestEnsureSchema_givesWay(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		authority, err := Open(d.DSN(), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		locker, err := tier.New(nil, authority, tier.WithTTL(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := locker.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		held, err := locker.Acquire(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, "INSERT INTO lease (lock_key, fence, holder, acquired_at, expires_at) VALUES ('ns/guarded', 1, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))")
		unlock := lockRow(t, admin, "ns/guarded")
		migrated := make(chan error, 1)
		go func() { migrated <- ensureSchema(t.Context(), admin, "", upTo(t, 3, "")) }()
		granted := 0
		end := time.Now().Add(4 * time.Second)
		for i := 0; time.Now().Before(end); i++ {
			lease, err := locker.Acquire(t.Context(), fmt.Sprintf("other%d", i))
			if err != nil {
				// Held is what a claim finds whose own lost grant is not undone yet.
				if !errors.Is(err, tier.ErrUnavailable) && !errors.Is(err, tier.ErrHeld) {
					t.Errorf("acquire: %v", err)
				}
				continue
			}
			granted++
			if err := lease.Release(t.Context()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("release: %v", err)
			}
		}
		select {
		case err := <-migrated:
			t.Fatalf("ended under a transaction: %v", err)
		default:
		}
		if granted == 0 {
			t.Error("nobody else was granted anything")
		}
		if err := held.Context().Err(); err != nil {
			t.Errorf("what was held is lost: %v", context.Cause(held.Context()))
		}
		unlock()
		if err := <-migrated; err != nil {
			t.Error(err)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	})
}

// Installations in one database do not meet.
func TestEnsureSchema_prefix(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		if err := EnsureSchema(t.Context(), admin, WithTablePrefix("a_")); err != nil {
			t.Fatal(err)
		}
		if err := ensureSchema(t.Context(), admin, "b_", upTo(t, 3, "b_")); err != nil {
			t.Fatal(err)
		}
		if a, b := versionsOf(t, admin, "a_"), versionsOf(t, admin, "b_"); a != "1,2" || b != "1,2,3" {
			t.Errorf("versions %s and %s", a, b)
		}
		for _, prefix := range []string{"a_", "b_"} {
			x := open(t, d.DSN(), WithTimeout(busyLimit), WithTablePrefix(prefix))
			if err := x.Check(t.Context()); err != nil {
				t.Errorf("%s: %v", prefix, err)
			}
		}
		var plain int
		if err := admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"+
			" AND TABLE_NAME NOT LIKE 'a\\_%' AND TABLE_NAME NOT LIKE 'b\\_%' AND TABLE_NAME <> 'lease_note'").Scan(&plain); err != nil || plain != 0 {
			t.Errorf("%d tables without a prefix, %v", plain, err)
		}
	})
}

// What was dropped under a version that is listed is made again; what is there
// stays.
func TestEnsureSchema_mends(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		mustExec(t, admin, "UPDATE floor SET fence = 77")
		for _, statement := range []string{"DROP TABLE canary", "DELETE FROM schema_version", "DROP TABLE lease", "DELETE FROM floor", "DROP TABLE floor"} {
			mustClaim(t, a, claimOf("ns/"+statement))
			mustExec(t, admin, statement)
			if err := EnsureSchema(t.Context(), admin); err != nil {
				t.Fatal(err)
			}
			if err := a.Check(t.Context()); err != nil {
				t.Errorf("after %s: %v", statement, err)
			}
			if isHeld(t, admin, "ns/"+statement) != (statement != "DROP TABLE lease") {
				t.Errorf("after %s: what was held is not, or the reverse", statement)
			}
			want := 77
			if strings.HasSuffix(statement, "floor") {
				want = 0
			}
			var fence int
			if err := admin.QueryRowContext(t.Context(), "SELECT fence FROM floor").Scan(&fence); err != nil || fence != want {
				t.Errorf("after %s: the floor is %d, want %d, %v", statement, fence, want, err)
			}
		}
	})
}

// The caller's pool may be of any kind, and is left as it was.
func TestEnsureSchema_anyPool(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		db, err := sql.Open("mysql", d.AdminDSN()+"?autocommit=0&sql_mode=%27ANSI_QUOTES%27&time_zone=%27%2B05%3A00%27")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close() //nolint:errcheck // of no interest
		db.SetMaxOpenConns(1)
		if err := EnsureSchema(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		if got := versionsOf(t, openAdmin(t, d), ""); got != "1,2" {
			t.Errorf("versions %q are there for others", got)
		}
		var mode, zone string
		var commits bool
		if err := db.QueryRowContext(t.Context(), "SELECT @@sql_mode, @@time_zone, @@autocommit").Scan(&mode, &zone, &commits); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(mode, "ANSI_QUOTES") || zone != "+05:00" || commits {
			t.Errorf("the pool has mode %s, zone %s, autocommit %t", mode, zone, commits)
		}
	})
}
