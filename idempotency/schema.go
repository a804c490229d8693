// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Migrations are the files of the directory migration, for those who apply
// schema changes with goose. They know no table prefix.
//
//go:embed migration/*.sql
var Migrations embed.FS

// EnsureSchema makes the tables in the database of db that are not there yet,
// with the table prefix of opts. Many processes may call it at once, and one that
// died is made good by the next call: every statement may be repeated. It needs the
// right to CREATE beside those of the guard's own user: SELECT, INSERT, UPDATE and
// DELETE on them.
func EnsureSchema(ctx context.Context, db *sql.DB, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	if db == nil {
		return fmt.Errorf("%w: db is nil", ErrOption)
	}
	all, err := migrations(o.prefix)
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("schema: %w", notBegun(ctx, err))
	}
	defer func() {
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // it has a setting of ours
		_ = conn.Close()
	}()
	for _, statement := range append([]string{"SET autocommit = 1"}, all...) {
		for try := 0; ; try++ {
			_, err := conn.ExecContext(ctx, statement)
			if err == nil {
				break
			}
			if err = classify(ctx, err, ErrSchema); try == repeats || serverError(err) == nil || !errors.Is(err, ErrRetryTx) {
				return fmt.Errorf("schema: %w", err)
			}
			if err := sleep(ctx, backOff(try)); err != nil {
				return err
			}
		}
	}
	return nil
}

// migrations are the statements of all files, in order: each ends with a semicolon
// at a line's end.
func migrations(prefix string) ([]string, error) {
	names, err := fs.Glob(Migrations, "migration/*.sql") // sorted, and numbers have five digits
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range names {
		content, err := Migrations.ReadFile(name)
		if err != nil {
			return nil, err
		}
		_, up, _ := strings.Cut(string(content), "-- +goose Up\n")
		up, _, _ = strings.Cut(up, "-- +goose Down\n")
		for statement := range strings.SplitSeq(tableName.ReplaceAllString(up, "`"+prefix+"$1`"), ";\n") {
			if statement = strings.TrimSpace(statement); statement != "" {
				all = append(all, statement)
			}
		}
	}
	return all, nil
}

var tableName = regexp.MustCompile("`(idempotency(?:_fence|_version)?)`")
