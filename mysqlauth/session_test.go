// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// Whatever a DSN and the server's defaults say, statements mean the same:
// faults D1, D4, J8, J13.
func TestSession_everyDSN_meansTheSame_J13(t *testing.T) {
	isolation := map[stack.Engine]string{stack.MariaDB: "tx_isolation", stack.MySQL: "transaction_isolation"}
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		name := isolation[d.Server().Engine()]
		for _, params := range []string{
			name + "='READ-UNCOMMITTED'", name + "='READ-COMMITTED'", name + "='REPEATABLE-READ'", name + "='SERIALIZABLE'",
			"clientFoundRows=true", "time_zone='%2B08:00'", "time_zone='-11:00'&parseTime=true&loc=Asia%2FShanghai",
			"parseTime=true&loc=America%2FNew_York", "autocommit=0", "autocommit=0&clientFoundRows=true&" + name + "='SERIALIZABLE'",
			"sql_mode=''", "sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'", "sql_safe_updates=1",
			"charset=latin1", "collation=gbk_chinese_ci", "interpolateParams=true", "rejectReadOnly=true", "columnsWithAlias=true", "readTimeout=1ms",
		} {
			db, err := sql.Open("mysql", d.DSN()+"?"+params)
			if err != nil {
				t.Fatal(err)
			}
			given, err := New(db, WithTimeout(busyLimit), WithSweepInterval(0))
			if err != nil {
				t.Fatal(err)
			}
			own, err := Open(d.DSN()+"?"+params, WithTimeout(busyLimit), WithSweepInterval(0))
			if err != nil {
				t.Fatal(err)
			}
			as := []*Authority{given, own}
			if params == "readTimeout=1ms" || params == "collation=gbk_chinese_ci" {
				as = as[1:] // Open undoes it; of a pool that is given it stays
				if err := given.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			for _, a := range as {
				live(t, params, a, admin)
				if err := a.Close(t.Context()); err != nil {
					t.Errorf("%s: Close: %v", params, err)
				}
			}
			if err := db.PingContext(t.Context()); err != nil && params != "readTimeout=1ms" {
				t.Errorf("%s: a pool that was given is closed: %v", params, err)
			}
			_ = db.Close()
		}
	})
}

// live takes leases through their lives, on a row that is new and again.
func live(t *testing.T, name string, a *Authority, admin *sql.DB) {
	t.Helper()
	mustExec(t, admin, "DELETE FROM lease")
	var last uint64
	for range 2 {
		g, err := a.Claim(t.Context(), driver.Claim{Key: "ns/k'\\\xff", TTL: 20 * time.Second, Holder: "h'\\", Block: 3})
		if err != nil {
			t.Errorf("%s: Claim: %v", name, err)
			return
		}
		if g.Fence <= last {
			t.Errorf("%s: fence %d after %d", name, g.Fence, last)
		}
		last = g.Fence + 2
		if _, err := a.Claim(t.Context(), claimOf("ns/k'\\\xff")); driver.ClassOf(err) != driver.ClassContention || isBusy(err) {
			t.Errorf("%s: second claim: %v", name, err)
		}
		var left float64
		if err := admin.QueryRowContext(t.Context(), "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)/1e6 FROM lease").Scan(&left); err != nil || left > 20 || left < 10 {
			t.Errorf("%s: %v s left of 20, %v", name, left, err)
		}
		if row, err := a.Look(t.Context(), "ns/k'\\\xff"); err != nil || row.Token != g.Token || row.Holder != "h'\\" || row.Fence != last || row.Left > 20*time.Second {
			t.Errorf("%s: Look: %+v, %v", name, row, err)
		}
		for range 2 {
			got := a.Renew(t.Context(), []driver.Renewal{{Key: "ns/k'\\\xff", Token: g.Token, TTL: 20 * time.Second, Until: g.Until}})[0]
			if left := time.Until(got.Until); got.Err != nil || left > 20*time.Second || left < 15*time.Second {
				t.Errorf("%s: Renew: %+v", name, got)
			}
		}
		if err := a.Release(t.Context(), driver.Release{Key: "ns/k'\\\xff", Token: g.Token, Until: g.Until}); err != nil {
			t.Errorf("%s: Release: %v", name, err)
		}
		if err := a.Release(t.Context(), driver.Release{Key: "ns/k'\\\xff", Token: g.Token, Until: g.Until}); lossReason(err) != driver.LossFreed {
			t.Errorf("%s: second release: %v", name, err)
		}
	}
}

// Idle lanes keep no connection, and what the pool gets back is whole.
func TestSession_goesBackWhenIdle(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
		if n := a.db.Stats().InUse; n == 0 {
			t.Error("lanes keep no session")
		}
		within(t, 3*time.Second, "no connection in use", func() bool { return a.db.Stats().InUse == 0 })
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
	})
}

// A server that says nothing hangs nobody: faults E8, P10.
func TestSession_silentServer_boundsEverything_E8(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		for _, warm := range []bool{true, false} {
			a := open(t, d.DSNAt(p.Addr()))
			g := driver.Grant{Token: driver.NewToken(), Until: time.Now().Add(3 * time.Second)}
			if warm {
				g = mustClaim(t, a, driver.Claim{Key: "ns/k", TTL: 3 * time.Second, Block: 1})
			}
			p.BlackHole()
			bounded := func(what string, call func(context.Context) error) {
				for _, limit := range []time.Duration{0, 200 * time.Millisecond} {
					ctx, most := t.Context(), 1500*time.Millisecond
					if limit > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, limit)
						defer cancel()
						most = limit + 500*time.Millisecond
					}
					began := time.Now()
					if err := call(ctx); err == nil || driver.ClassOf(err) == driver.ClassContention {
						t.Errorf("%s: %v", what, err)
					}
					if took := time.Since(began); took > most {
						t.Errorf("%s took %v, most is %v", what, took, most)
					}
				}
			}
			bounded("Claim", func(ctx context.Context) error { _, err := a.Claim(ctx, claimOf("ns/other")); return err })
			bounded("Look", func(ctx context.Context) error { _, err := a.Look(ctx, "ns/k"); return err })
			bounded("Renew", func(ctx context.Context) error {
				return a.Renew(ctx, []driver.Renewal{{Key: "ns/k", Token: g.Token, TTL: 3 * time.Second, Until: time.Now().Add(time.Minute)}})[0].Err
			})
			bounded("Release", func(ctx context.Context) error { return a.Release(ctx, releaseOf("ns/k", g)) })
			if err := p.Heal(); err != nil {
				t.Fatal(err)
			}
			within(t, 5*time.Second, "service after the silence", func() bool {
				_, err := a.Look(t.Context(), "ns/k")
				return err == nil
			})
		}
	})
}

// A server that turned read-only is down, not held, and serves again without
// a restart of ours: faults E11.
func TestSession_readOnlyServer_recovers_E11(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			server := stack.StartSQL(t, engine)
			d := server.CreateDatabase(t)
			admin := openAdmin(t, d)
			if err := EnsureSchema(t.Context(), admin); err != nil {
				t.Fatal(err)
			}
			a := open(t, d.DSN(), WithTimeout(busyLimit))
			g := mustClaim(t, a, claimOf("ns/k"))
			mustExec(t, admin, "SET GLOBAL read_only = 1")
			_, err := a.Claim(t.Context(), claimOf("ns/other"))
			var classified *driver.Error
			if !errors.As(err, &classified) || classified.Class != driver.ClassDown || classified.Advice != adviceReadOnly {
				t.Errorf("claim of a read-only server: %v", err)
			}
			if got := renewOne(t, a, "ns/k", g, time.Minute); driver.ClassOf(got.Err) != driver.ClassDown {
				t.Errorf("renewal of a read-only server: %v", got.Err)
			}
			if err := a.Check(t.Context()); driver.ClassOf(err) != driver.ClassDown {
				t.Errorf("Check of a read-only server: %v", err)
			}
			mustExec(t, admin, "SET GLOBAL read_only = 0")
			mustClaim(t, a, claimOf("ns/other"))
			mustRelease(t, a, "ns/k", g)

			// And a server that dies and comes back.
			g = mustClaim(t, a, claimOf("ns/k"))
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := a.Claim(t.Context(), claimOf("ns/dead")); driver.ClassOf(err) == driver.ClassContention {
					t.Errorf("claim of a dead server: %v", err)
				}
			}
			if _, err := a.Claim(t.Context(), claimOf("ns/dead")); driver.ClassOf(err) != driver.ClassDown {
				t.Errorf("claim of a dead server: %v", err)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			within(t, 5*time.Second, "service after the restart", func() bool {
				return a.Release(t.Context(), releaseOf("ns/k", g)) == nil
			})
			if next := mustClaim(t, a, claimOf("ns/k")); next.Fence <= g.Fence {
				t.Errorf("fence %d after %d", next.Fence, g.Fence)
			}
		})
	}
}

// A lane that only reads leaves a server that turned read-only when any other
// meets it, and one that was replaced unnoticed after a while, though it never
// rests: faults E11.
func TestSession_busyReader_leavesAnOldPrimary_E11(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		conns := make(chan int, 1)
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("SELECT lock_key, token, fence") && r.Has("ns/looked") {
				conns <- r.Conn
			}
			return stack.Pass
		})
		look := func(a *Authority) int {
			t.Helper()
			if _, err := a.Look(t.Context(), "ns/looked"); err != nil {
				t.Fatal(err)
			}
			return <-conns
		}
		mustRelease(t, a, "ns/k", mustClaim(t, a, claimOf("ns/k")))
		first := look(a)
		if _, err := a.Show(t.Context(), "ns/k"); err != nil { // leaves an idle connection
			t.Fatal(err)
		}
		if again := look(a); again != first {
			t.Fatalf("a busy lane changed its connection from %d to %d", first, again)
		}
		before := p.Dials()
		p.LoseReply(1, stack.Having("SET l.fence = "), stack.SQLError(1290, "injected"))
		if _, err := a.Claim(t.Context(), claimOf("ns/k")); driver.ClassOf(err) != driver.ClassDown {
			t.Fatalf("claim of a read-only server: %v", err)
		}
		if after := look(a); after <= before {
			t.Errorf("connection %d still reads what may be an old primary; the last of before was %d", after, before)
		}

		aging, err := Open(d.DSNAt(p.Addr()), WithTimeout(busyLimit), WithSweepInterval(0))
		if err != nil {
			t.Fatal(err)
		}
		aging.sessions.age = 300 * time.Millisecond
		first = look(aging)
		within(t, busyLimit, "another connection for a lane that never rests", func() bool { return look(aging) != first })
		if err := aging.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What a session is, whatever the server's defaults are.
func TestSession_settings(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		name := map[stack.Engine]string{stack.MariaDB: "tx_isolation", stack.MySQL: "transaction_isolation"}[d.Server().Engine()]
		a := open(t, d.DSN()+"?autocommit=0&time_zone='%2B08:00'&sql_safe_updates=1&completion_type=1&sql_mode=''&"+name+"='SERIALIZABLE'", WithTimeout(busyLimit))
		s, err := a.sessions.borrow(t.Context(), "test", busyLimit)
		if err != nil {
			t.Fatal(err)
		}
		defer a.sessions.giveBackBorrowed(s)
		for variable, want := range map[string]string{
			name: "READ-COMMITTED", "autocommit": "1", "time_zone": "+00:00", "innodb_lock_wait_timeout": "1", "lock_wait_timeout": "1",
			"sql_mode": "STRICT_ALL_TABLES", "sql_safe_updates": "0", "completion_type": "NO_CHAIN",
		} {
			var got string
			if err := s.query(busyLimit, func(rows *sql.Rows) error { return rows.Scan(&got) }, "SELECT @@SESSION."+variable); err != nil || got != want {
				t.Errorf("%s = %s, want %s, %v", variable, got, want, err)
			}
		}
	})
}

// A connection to a server that does not serve is not used again: the next one
// may reach the new primary. One that met a deadlock is.
func TestSession_discardedWhenTheServerDoesNotServe_E11(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		mustClaim(t, a, claimOf("ns/warm"))
		for number, discarded := range map[uint16]bool{1290: true, 1792: true, 1836: true, 1927: true, 1213: false, 1142: false} {
			hit := p.LoseReply(1, stack.Having("SET l.fence = "), stack.SQLError(number, "injected"))
			_, _ = a.Claim(t.Context(), claimOf("ns/warm"))
			before := (<-hit).Conn
			after := make(chan int, 10)
			p.OnRequest(func(r stack.Request) stack.Action {
				if r.Has("SET l.fence = ") {
					after <- r.Conn
				}
				return stack.Pass
			})
			if _, err := a.Claim(t.Context(), claimOf("ns/warm")); driver.ClassOf(err) != driver.ClassContention {
				t.Errorf("claim after %d: %v", number, err)
			}
			p.OnRequest(nil)
			if got := before != <-after; got != discarded {
				t.Errorf("after error %d: discarded %v, want %v", number, got, discarded)
			}
		}
	})
}
