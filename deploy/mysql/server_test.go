// SPDX-License-Identifier: Apache-2.0

package mysql_test

import (
	"bytes"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/stack"
)

// secret is a password that breaks careless quoting.
const secret = `it's "a" \ secret`

// server is a server of its own, because the accounts have fixed names, set up
// by the files of this directory in the order in which docker-compose.yml
// mounts them.
type server struct {
	*stack.Server
	admin *sql.DB // without a database
}

func onBothEngines(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := &server{Server: stack.StartSQL(t, engine)}
			s.admin = open(t, s.AdminDSN(""))
			s.exec(t, "CREATE DATABASE tierlock", "USE tierlock")
			s.exec(t, users(t))
			s.exec(t, "USE tierlock", read(t, "schema.sql"), read(t, "grants.sql"))
			test(t, s)
		})
	}
}

// users is what users.sh tells the mysql client of the image, here a cat.
func users(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "mysql"), []byte("#!/bin/sh\nexec cat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "users.sh")
	cmd.Env = []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "MYSQL_ROOT_PASSWORD=root",
		"TIERLOCK_MYSQL_PASSWORD=" + secret, "SHOP_MYSQL_PASSWORD=" + secret, "DEMO_MYSQL_PASSWORD=" + secret,
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("users.sh: %v\n%s", err, complaints.Bytes())
	}
	return string(out)
}

// exec runs scripts on one connection, as the image's client does.
func (s *server) exec(t *testing.T, scripts ...string) {
	t.Helper()
	cfg, err := mysql.ParseDSN(s.AdminDSN(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MultiStatements = true
	conn, err := open(t, cfg.FormatDSN()).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // what was executed is done
	for _, script := range scripts {
		if _, err := conn.ExecContext(t.Context(), script); err != nil {
			t.Fatalf("%v\nin\n%s", err, script)
		}
	}
}

// dsn is for one of the accounts of users.sh.
func (s *server) dsn(t *testing.T, user, database string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(s.AdminDSN(database))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd = user, secret
	return cfg.FormatDSN()
}

// rights are all that an account has, as "table: right, right", sorted.
func (s *server) rights(t *testing.T, user string) []string {
	t.Helper()
	rows, err := s.admin.QueryContext(t.Context(), `
		SELECT CONCAT(object, ': ', GROUP_CONCAT(what ORDER BY what SEPARATOR ', ')) FROM (
			SELECT GRANTEE, '*.*' AS object, PRIVILEGE_TYPE AS what FROM information_schema.USER_PRIVILEGES
			UNION ALL SELECT GRANTEE, CONCAT(TABLE_SCHEMA, '.*'), PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES
			UNION ALL SELECT GRANTEE, CONCAT(TABLE_SCHEMA, '.', TABLE_NAME), PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES
			UNION ALL SELECT GRANTEE, CONCAT(TABLE_SCHEMA, '.', TABLE_NAME), CONCAT(PRIVILEGE_TYPE, ' of a column') FROM information_schema.COLUMN_PRIVILEGES
		) p WHERE GRANTEE = ? GROUP BY object ORDER BY object`, "'"+user+"'@'%'")
	if err != nil {
		t.Fatal(err)
	}
	return strs(t, rows)
}

// tables are those of the lock's database.
func (s *server) tables(t *testing.T) []string {
	t.Helper()
	rows, err := s.admin.QueryContext(t.Context(),
		"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'tierlock' ORDER BY TABLE_NAME")
	if err != nil {
		t.Fatal(err)
	}
	return strs(t, rows)
}

func strs(t *testing.T, rows *sql.Rows) []string {
	t.Helper()
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}
