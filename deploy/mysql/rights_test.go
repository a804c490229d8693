// SPDX-License-Identifier: Apache-2.0

package mysql_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
)

func TestSchema_isTheLibrarys(t *testing.T) {
	t.Parallel()
	if read(t, "schema.sql") != strings.TrimSpace(mysqlauth.Schema) {
		t.Error("deploy/mysql/schema.sql is not mysqlauth.Schema: copy it from mysqlauth, and give grants.sql what it needs")
	}
}

// The lock's own user does all that the lock does, and nothing else.
func TestGrants_lock(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *server) {
		want := []string{"*.*: USAGE"}
		for _, table := range s.tables(t) {
			want = append(want, "tierlock."+table+": DELETE, INSERT, SELECT, UPDATE")
		}
		if got := s.rights(t, "tierlock"); !slices.Equal(got, want) {
			t.Errorf("rights\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}

		dsn := s.dsn(t, "tierlock", "tierlock")
		authority, locker := s.locker(t)
		lease := acquire(t, locker)
		for what, err := range map[string]error{
			"verify": lease.Verify(t.Context()), "renew": lease.Renew(t.Context()),
			"prepare": authority.Prepare(t.Context(), "default/another"), "release": lease.Release(t.Context()),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := authority.Sweep(t.Context()); err != nil {
			t.Errorf("sweep: %v", err)
		}

		db := open(t, dsn)
		for _, statement := range []string{
			"CREATE TABLE other (id INT)", "ALTER TABLE lease ADD COLUMN other INT", "CREATE INDEX i ON lease (fence)",
			"TRUNCATE TABLE lease", "DROP TABLE lease", "CREATE DATABASE other", "CREATE USER other",
		} {
			if _, err := db.ExecContext(t.Context(), statement); !denied(err) {
				t.Errorf("%s: %v, want it denied", statement, err)
			}
		}
		if err := mysqlauth.EnsureSchema(t.Context(), db, mysqlauth.WithTablePrefix("other_")); !denied(err) {
			t.Errorf("EnsureSchema: %v, want it denied", err)
		}
	})
}

// The user that every test of the lock connects as may do to its tables what the
// lock's own user may, and nothing more: a statement that needs another right
// fails there first.
func TestGrants_testUser(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *server) {
		d := s.CreateDatabase(t)
		got := s.rights(t, d.User())
		if len(got) != 2 || got[0] != "*.*: USAGE" {
			t.Fatalf("the test user has %q, want rights on its own database alone", got)
		}
		rights, ok := strings.CutPrefix(got[1], d.Name+".*: ")
		if !ok {
			t.Errorf("the test user has %q, want rights on %s", got[1], d.Name)
		}
		for _, of := range s.rights(t, "tierlock")[1:] {
			if table, granted, _ := strings.Cut(of, ": "); granted != rights {
				t.Errorf("the lock's user may %s on %s, the test user %s", granted, table, rights)
			}
		}
	})
}

// A business user proves its tenure in a transaction of its own, and can do
// nothing else to leases but what UPDATE can.
func TestGrants_business(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *server) {
		want := []string{"*.*: USAGE", "tierlock.lease: SELECT, UPDATE"}
		got := slices.DeleteFunc(s.rights(t, "shop"), func(right string) bool { return strings.HasPrefix(right, "shop.*: ") })
		if !slices.Equal(got, want) {
			t.Errorf("rights %q beside its own database, want %q", got, want)
		}

		s.exec(t, "CREATE TABLE shop.stock (n INT NOT NULL) ENGINE = InnoDB", "INSERT INTO shop.stock VALUES (10)")
		_, locker := s.locker(t)
		lease := acquire(t, locker)
		db := open(t, s.dsn(t, "shop", "shop"))
		sell := func() error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if _, err := tx.ExecContext(t.Context(), "UPDATE stock SET n = n - 1"); err != nil {
				return err
			}
			if err := idempotency.ConfirmTx(t.Context(), tx, lease); err != nil {
				return err
			}
			return tx.Commit()
		}
		if err := sell(); err != nil {
			t.Errorf("a guarded write: %v", err)
		}
		s.exec(t, "UPDATE tierlock.lease SET token = NULL")
		if err := sell(); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("a guarded write of a lease that was freed: %v, want ErrStaleFence", err)
		}
		if err := lease.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
			t.Errorf("its release: %v, want ErrLost", err)
		}
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT n FROM stock").Scan(&n); err != nil || n != 9 {
			t.Errorf("stock %d, %v; want 9", n, err)
		}
		for _, statement := range []string{
			"DELETE FROM tierlock.lease", "INSERT INTO tierlock.lease SELECT * FROM tierlock.lease", "UPDATE tierlock.floor SET fence = 0",
			"TRUNCATE TABLE tierlock.lease", "DROP TABLE tierlock.lease",
		} {
			if _, err := db.ExecContext(t.Context(), statement); !denied(err) {
				t.Errorf("%s: %v, want it denied", statement, err)
			}
		}
	})
}

// The demo runs with the account that users.sh makes for it.
func TestUsers_demo(t *testing.T) {
	demo := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", demo, "../../cmd/demo").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	onBothEngines(t, func(t *testing.T, s *server) {
		out, err := exec.CommandContext(t.Context(), demo, "-redis", stack.SharedRedis(t).URL(), "-mysql", s.dsn(t, "demo", "demo"),
			"-nodes", "2", "-workers", "2", "-duration", "1s").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		want := []string{"*.*: USAGE"}
		got := slices.DeleteFunc(s.rights(t, "demo"), func(right string) bool { return strings.HasPrefix(right, "demo.*: ") })
		if !slices.Equal(got, want) {
			t.Errorf("rights %q beside its own database, want %q", got, want)
		}
	})
}

// locker is one that connects as the lock's user.
func (s *server) locker(t *testing.T) (*mysqlauth.Authority, *tier.Locker) {
	t.Helper()
	authority, err := mysqlauth.Open(s.dsn(t, "tierlock", "tierlock"))
	if err != nil {
		t.Fatal(err)
	}
	locker, err := tier.New(nil, authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locker.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := locker.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return authority, locker
}

func acquire(t *testing.T, locker *tier.Locker) *tier.Lease {
	t.Helper()
	lease, err := locker.Acquire(t.Context(), "sku")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// denied reports whether the server refused a statement for want of a right:
// to the database, to the table, to the server.
func denied(err error) bool {
	refused, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains([]uint16{1044, 1142, 1227}, refused.Number)
}
