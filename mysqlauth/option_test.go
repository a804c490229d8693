// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestOpen_badOptions_nameTheValue(t *testing.T) {
	const dsn = "user:secret@tcp(127.0.0.1:1)/db"
	for want, opt := range map[string]Option{
		"5ms":     WithTimeout(5 * time.Millisecond),
		"-1s":     WithTimeout(-time.Second),
		"2h0m0s":  WithTimeout(2 * time.Hour),
		"6":       WithMaxOpenConns(6),
		"-3":      WithMaxOpenConns(-3),
		"a`b":     WithTablePrefix("a`b"),
		"drop t;": WithTablePrefix("drop t;"),
		"xxxxxx":  WithTablePrefix(strings.Repeat("x", 41)),
		"59s":     WithRetention(59 * time.Second),
		"-1ns":    WithSweepInterval(-1),
	} {
		_, err := Open(dsn, opt)
		if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open: %v; want %v with %q", err, ErrOption, want)
		}
		if err := EnsureSchema(t.Context(), nil, opt); !errors.Is(err, ErrOption) {
			t.Errorf("EnsureSchema: %v", err)
		}
		if _, err := New(nil, opt); !errors.Is(err, ErrOption) {
			t.Errorf("New: %v", err)
		}
	}
	if _, err := New(nil); !errors.Is(err, ErrOption) {
		t.Errorf("New(nil): %v", err)
	}
	if err := EnsureSchema(t.Context(), nil); !errors.Is(err, ErrOption) {
		t.Errorf("EnsureSchema(nil): %v", err)
	}
	small, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close() //nolint:errcheck // nothing was opened
	small.SetMaxOpenConns(3)
	if _, err := New(small); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "3") {
		t.Errorf("New on a pool of 3: %v", err)
	}
}

// A password reaches no error, wherever the DSN has it.
func TestOpen_badDSN_withholdsThePassword(t *testing.T) {
	const password = "hunter2"
	for _, dsn := range []string{
		"", password, "user:" + password, "user:" + password + "@tcp(127.0.0.1:1)", "user:" + password + "@tcp(127.0.0.1:1)/",
		"user:" + password + "@tcp(127.0.0.1:1/db", "user:x@tcp(h)/db?timeout=" + password,
		"user:x@tcp(h)/db?tls=" + password, "user:x@tcp(h)/db?parseTime=" + password, password + "://user@h/db", "u:p@unix/" + password + "?x",
		"user:" + password + "@tcp(h)/db?maxAllowedPacket=x",
	} {
		a, err := Open(dsn)
		if err == nil {
			_ = a.Close(t.Context())
			if !strings.HasPrefix(dsn, "u:p@unix") {
				t.Errorf("Open(%q): no error", dsn)
			}
			continue
		}
		if !errors.Is(err, ErrOption) || strings.Contains(err.Error(), password) {
			t.Errorf("Open(%q): %v", dsn, err)
		}
	}
}

// Wrong credentials and an unreachable server say what to do, without the
// password, and are never "held".
func TestOpen_unusableServer_saysWhatToDo(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		addr := d.Server().Addr()
		for name, test := range map[string]struct {
			dsn   string
			class driver.Class
		}{
			"nobody listens": {"user:hunter2@tcp(127.0.0.1:1)/db", driver.ClassDown},
			"wrong password": {d.User() + ":hunter2@tcp(" + addr + ")/" + d.Name, driver.ClassConfig},
			"no user":        {"nobody:hunter2@tcp(" + addr + ")/" + d.Name, driver.ClassConfig},
			"no database":    {d.User() + ":" + d.Password() + "@tcp(" + addr + ")/hunter", driver.ClassConfig},
			"bad variable":   {d.DSN() + "?no_such_variable=1", driver.ClassConfig},
		} {
			a := open(t, test.dsn, WithTimeout(busyLimit))
			_, err := a.Claim(t.Context(), claimOf("ns/k"))
			var classified *driver.Error
			if !errors.As(err, &classified) || classified.Class != test.class || classified.Advice == "" {
				t.Errorf("%s: %v", name, err)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), d.Password()) {
				t.Errorf("%s: the password is in %v", name, err)
			}
			if err := a.Check(t.Context()); driver.ClassOf(err) != test.class {
				t.Errorf("%s: Check: %v", name, err)
			}
		}
	})
}

func TestPrefix_namesAllTables(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		if err := EnsureSchema(t.Context(), admin, WithTablePrefix("shop_")); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"lease", "floor", "canary", "schema_version"} {
			mustExec(t, admin, "DROP TABLE "+table)
		}
		a := open(t, d.DSN(), WithTimeout(busyLimit), WithTablePrefix("shop_"))
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		g := mustClaim(t, a, claimOf("ns/k"))
		if want := "`" + d.Name + "`.`shop_lease`"; g.Table != want {
			t.Errorf("Table = %s, want %s", g.Table, want)
		}
		mustRelease(t, a, "ns/k", g)
		mustExec(t, admin, "UPDATE shop_lease SET expires_at = expires_at - INTERVAL 3 DAY WHERE lock_key = 'ns/k'")
		if n := mustSweep(t, a); n != 1 {
			t.Errorf("%d rows swept, want 1", n)
		}
	})
}
