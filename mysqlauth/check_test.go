// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestCheck_goodServer_atOnceFromMany(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		var wg sync.WaitGroup
		for range 4 {
			a := open(t, d.DSN(), WithTimeout(busyLimit))
			wg.Go(func() {
				if err := a.Check(t.Context()); err != nil {
					t.Errorf("Check: %v", err)
				}
			})
		}
		wg.Wait()
		var rows int
		if err := openAdmin(t, d).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM canary").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%d canaries are left, %v", rows, err)
		}
	})
}

// Each finding is an error of its own that says what to do.
func TestCheck_findings(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		drop := []string{"DROP TABLE IF EXISTS lease, floor, canary, schema_version"}
		for want, statements := range map[string][]string{
			"table lease is missing":            {"DROP TABLE lease"},
			"table canary is missing":           {"DROP TABLE canary"},
			"table lease is MyISAM, not InnoDB": {"ALTER TABLE lease ENGINE = MyISAM"},
			"table floor is MyISAM, not InnoDB": {"ALTER TABLE floor ENGINE = MyISAM"},
			"column lock_key":                   {"ALTER TABLE lease MODIFY lock_key VARCHAR(320) NOT NULL"},
			"column token":                      {"ALTER TABLE lease MODIFY token BINARY(15) NULL"},
			"column expires_at":                 {"ALTER TABLE lease MODIFY expires_at DATETIME NOT NULL"},
			"column guard":                      {"ALTER TABLE lease DROP COLUMN guard"},
			"version 7, this driver needs":      {"INSERT INTO schema_version (version, applied_at) VALUES (7, UTC_TIMESTAMP(6))"},
			"version 0, this driver needs":      {"DELETE FROM schema_version"},
			errNoFloor.Error():                  {"DELETE FROM floor"},
		} {
			for _, statement := range drop {
				mustExec(t, admin, statement)
			}
			if err := EnsureSchema(t.Context(), admin); err != nil {
				t.Fatal(err)
			}
			for _, statement := range statements {
				mustExec(t, admin, statement)
			}
			a := open(t, d.DSN(), WithTimeout(busyLimit))
			err := a.Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v; want %q", statements, err, want)
				continue
			}
			var classified *driver.Error
			if !errors.As(err, &classified) || classified.Class != driver.ClassConfig || classified.Advice == "" {
				t.Errorf("%v: no advice in %v", statements, err)
			}
		}
	})
}

// A server that may forget is refused, unless that was asked for.
func TestCheck_durability(t *testing.T) {
	t.Parallel()
	for engine, args := range map[stack.Engine][]string{
		stack.MariaDB: {"--innodb-flush-log-at-trx-commit=2"},
		stack.MySQL:   {"--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0"},
	} {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			d := stack.StartSQL(t, engine, args...).CreateDatabase(t)
			if err := EnsureSchema(t.Context(), openAdmin(t, d)); err != nil {
				t.Fatal(err)
			}
			err := open(t, d.DSN(), WithTimeout(busyLimit)).Check(t.Context())
			if driver.ClassOf(err) != driver.ClassConfig || !strings.Contains(err.Error(), "innodb_flush_log_at_trx_commit") {
				t.Errorf("Check: %v", err)
			}
			if engine == stack.MySQL && (err == nil || !strings.Contains(err.Error(), "sync_binlog")) {
				t.Errorf("Check: %v", err)
			}
			if err := open(t, d.DSN(), WithTimeout(busyLimit), WithUnsafeDurability()).Check(t.Context()); err != nil {
				t.Errorf("Check of what was asked for: %v", err)
			}
		})
	}
}

// A proxy that sends reads elsewhere shows rows as they were: faults E13. The
// test plays the other server by undoing what each write of the canary did.
func TestCheck_splitReads_areSeen_E13(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p, admin := proxied(t, d), openAdmin(t, d)
		a := open(t, d.DSNAt(p.Addr()), WithTimeout(busyLimit))
		for _, elsewhere := range []string{"beat = beat - 1", "server_id = server_id + 1"} {
			p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
				if r.Has("UPDATE `canary`") && !r.Has("server_id = server_id") {
					_, _ = admin.Exec("UPDATE canary SET " + elsewhere)
				}
				return stack.Pass
			})
			if err := a.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "splits reads from writes") {
				t.Errorf("Check: %v", err)
			}
		}
		p.OnReply(nil)
		if err := a.Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
	})
}

// Rights are named: the library needs four.
func TestCheck_missingRights(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		for _, right := range []string{"INSERT", "UPDATE", "DELETE"} {
			mustExec(t, admin, "REVOKE "+right+" ON "+d.Name+".* FROM "+d.User()+"@'%'")
			err := open(t, d.DSN(), WithTimeout(busyLimit)).Check(t.Context())
			var classified *driver.Error
			if !errors.As(err, &classified) || classified.Advice != adviceRights {
				t.Errorf("without %s: %v", right, err)
			}
			mustExec(t, admin, "GRANT "+right+" ON "+d.Name+".* TO "+d.User()+"@'%'")
		}
	})
}
