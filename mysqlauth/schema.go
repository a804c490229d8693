// SPDX-License-Identifier: Apache-2.0

// Package mysqlauth makes its tables by numbered migrations, and
// schema_version lists those that were applied. A release has a number as
// well: that of its last migration. [Authority.Check] compares the two:
//
//   - A schema with a lower number is refused: run [EnsureSchema] first.
//   - A schema with a higher number is accepted if it is readable by this
//     release: no version above the release's own has a readable_by above it.
//
// So a deployment migrates first and then replaces processes one by one, old
// and new side by side. readable_by is a column of schema_version which the
// first migration after 00001 adds, and which every later one fills in its
// last statement: the lowest number of a release that can work with what the
// migration left. A version that does not say is readable by its own release
// on. A column is therefore dropped in two releases, one that no longer uses
// it and one whose migration drops it, readable by the former.
//
// A migration's statements may be repeated, since DDL has no transaction and
// the process may die after each: IF NOT EXISTS, or an upsert. Its last one
// lists it. ALTER TABLE, which MySQL has no such words for, may stand there as
// well: EnsureSchema takes "exists" and "does not exist" for done.
package mysqlauth

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Schema is what the migrations add up to, for those who make the tables of a
// new database by hand.
//
//go:embed schema.sql
var Schema string

// Migrations are the files of the directory migration, for those who apply
// schema changes with goose. They know no table prefix.
//
//go:embed migration/*.sql
var Migrations embed.FS

// schemaVersion is the release's number: its last migration's.
const schemaVersion = 2

// EnsureSchema applies the migrations that the database of db does not list
// yet, with the table prefix of opts. On the schema of a later release it does
// nothing; where a table was dropped it begins anew, without touching what is
// there.
//
// Many processes may call it at once, and one that died is made good by the
// next call. It needs the rights to CREATE and ALTER beside those of the
// library's own user.
//
// Leases of three seconds and more outlive it. A change to a table waits for
// the transactions that use it, and everybody else's statements wait behind
// it: a second at a time, then as long a pause. After ten rounds it gives up
// with the server's error, to be called again.
func EnsureSchema(ctx context.Context, db *sql.DB, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	if db == nil {
		return fmt.Errorf("%w: db is nil", ErrOption)
	}
	all, err := readMigrations(Migrations, o.prefix)
	if err != nil {
		return err
	}
	return classify("schema", ensureSchema(ctx, db, o.prefix, all))
}

// ensureSchema works on a connection of its own, which it makes like a session
// and throws away: the pool is the caller's.
func ensureSchema(ctx context.Context, db *sql.DB, prefix string, all []migration) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// Both errors say that the connection is gone, which is the aim, and
		// with it the named lock.
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		_ = conn.Close()
	}()
	for _, statement := range preparations {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if rest, err := unlisted(ctx, conn, prefix, all); err != nil || len(rest) == 0 {
		return err
	}
	// One process after another, so that none repeats a statement when others
	// are migrations ahead. Where named locks are a node's own (Galera) the
	// statements bear it.
	if err := lockSchema(ctx, conn, prefix); err != nil {
		return err
	}
	rest, err := unlisted(ctx, conn, prefix, all)
	if err != nil {
		return err
	}
	return migrate(ctx, conn, rest)
}

func lockSchema(ctx context.Context, conn *sql.Conn, prefix string) error {
	for try := 0; ; try++ {
		var locked sql.NullInt64
		// Names have room for 64 characters; hashed, those of a database and a
		// prefix fit.
		err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(CONCAT('tierlock ', LEFT(SHA2(CONCAT(DATABASE(), '.', ?), 256), 32)), 0)",
			prefix).Scan(&locked)
		if err != nil || locked.Int64 == 1 {
			return err
		}
		if err := pause(ctx, jitter(try)); err != nil {
			return err
		}
	}
}

// unlisted are the migrations to apply: none on a later release's schema, all
// where a table or the floor is missing.
func unlisted(ctx context.Context, conn *sql.Conn, prefix string, all []migration) ([]migration, error) {
	t := newTables(prefix)
	listed, err := versions(ctx, conn, "SELECT version FROM "+t.version)
	if noTable(err) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for version := range listed {
		if version > all[len(all)-1].version {
			return nil, nil
		}
	}
	whole, err := versions(ctx, conn, "SELECT f.id FROM "+t.floor+" f LEFT JOIN "+t.lease+" l ON FALSE LEFT JOIN "+t.canary+" c ON FALSE LEFT JOIN "+t.rowlock+" r ON FALSE LEFT JOIN "+t.shard+" s ON FALSE WHERE f.id = 1")
	if noTable(err) || err == nil && len(whole) == 0 {
		return all, nil
	}
	var rest []migration
	for _, m := range all {
		if !listed[m.version] {
			rest = append(rest, m)
		}
	}
	return rest, err
}

func versions(ctx context.Context, conn *sql.Conn, query string) (map[int]bool, error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	listed := make(map[int]bool)
	for rows.Next() {
		var version int
		if err := rows.Scan(&version); err != nil {
			return nil, err
		}
		listed[version] = true
	}
	return listed, rows.Err()
}

func migrate(ctx context.Context, conn *sql.Conn, all []migration) error {
	for _, m := range all {
		for i, statement := range m.statements {
			if err := apply(ctx, conn, statement); err != nil {
				return fmt.Errorf("migration %d, statement %d: %w", m.version, i+1, err)
			}
		}
	}
	return nil
}

// apply repeats a statement that others were in the way of.
func apply(ctx context.Context, conn *sql.Conn, statement string) error {
	const rounds = 10
	for try := 1; ; try++ {
		began := time.Now()
		_, err := conn.ExecContext(ctx, statement)
		if err == nil || alreadySo(err) {
			return nil
		}
		if try == rounds || !rolledBack(err) {
			return err
		}
		// What waited behind it has as much time to go on.
		if err := pause(ctx, jitter(try)+time.Since(began)); err != nil {
			return err
		}
	}
}

// alreadySo reports that a change to a table was made before: by another process,
// or by one that died.
func alreadySo(err error) bool {
	switch errorNumber(err) {
	case 1060, 1061, 1091: // column or key exists, or does not
		return true
	}
	return false
}

// noTable reports that there is no such table.
func noTable(err error) bool { return errorNumber(err) == 1146 }

func errorNumber(err error) uint16 {
	if server, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return server.Number
	}
	return 0
}

// migration is the Up part of one file.
type migration struct {
	version    int
	statements []string
}

var (
	migrationFile = regexp.MustCompile(`^migration/(\d{5})_[a-z_]+\.sql$`)
	tableName     = regexp.MustCompile("`(lease|floor|canary|rowlock|shard|schema_version)`")
)

// readMigrations returns them in order.
func readMigrations(files fs.FS, prefix string) ([]migration, error) {
	names, err := fs.Glob(files, "migration/*.sql") // sorted, and numbers have five digits
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		match := migrationFile.FindStringSubmatch(name)
		_, up, isUp := strings.Cut(string(content), "-- +goose Up\n")
		up, _, isDown := strings.Cut(up, "-- +goose Down\n")
		if match == nil || !isUp || !isDown {
			return nil, fmt.Errorf("mysqlauth: %s is no migration", name)
		}
		version, err := strconv.Atoi(match[1])
		if err != nil {
			return nil, err
		}
		all = append(all, migration{version, statements(up, prefix)})
	}
	return all, nil
}

// statements end with a semicolon at a line's end; comments have lines of
// their own.
func statements(script, prefix string) []string {
	var lines strings.Builder
	for line := range strings.Lines(tableName.ReplaceAllString(script, "`"+prefix+"$1`")) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines.WriteString(line)
		}
	}
	var all []string
	for statement := range strings.SplitSeq(lines.String(), ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}
