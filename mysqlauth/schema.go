// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// Schema is what EnsureSchema executes without a prefix, for those who apply
// schema changes with a tool of their own.
//
//go:embed schema.sql
var Schema string

// schemaVersion is the highest version in schema.sql.
const schemaVersion = 1

var tableName = regexp.MustCompile("`(lease|floor|canary|schema_version)`")

// EnsureSchema creates the tables that are missing in the database of db, with
// the table prefix of opts. It needs the CREATE right, may be called by many
// processes at once, and changes nothing that is there.
func EnsureSchema(ctx context.Context, db *sql.DB, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	if db == nil {
		return fmt.Errorf("%w: db is nil", ErrOption)
	}
	for _, statement := range schemaStatements(o.prefix) {
		if err := ensure(ctx, db, statement); err != nil {
			return classify("schema", err)
		}
	}
	return nil
}

// ensure repeats a statement that met another process's: the second time it
// finds the work done.
func ensure(ctx context.Context, db *sql.DB, statement string) error {
	for try := 0; ; try++ {
		_, err := db.ExecContext(ctx, statement)
		if err == nil || try == retries || !rolledBack(err) {
			return err
		}
		if err := pause(ctx, jitter(try)); err != nil {
			return err
		}
	}
}

func schemaStatements(prefix string) []string {
	var lines []string
	for line := range strings.Lines(tableName.ReplaceAllString(Schema, "`"+prefix+"$1`")) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines = append(lines, line)
		}
	}
	var statements []string
	for statement := range strings.SplitSeq(strings.Join(lines, ""), ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			statements = append(statements, statement)
		}
	}
	return statements
}
