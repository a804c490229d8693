// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strings"
)

// Migrations are the files of the directory migration, for those who apply
// schema changes with goose. They know no table prefix.
//
//go:embed migration/*.sql
var Migrations embed.FS

// EnsureSchema makes the tables in the database of db that are not there yet,
// with the table prefix of opts. Many processes may call it at once. It needs the
// right to CREATE beside those of the guard's own user: SELECT, INSERT, UPDATE and
// DELETE on them.
func EnsureSchema(ctx context.Context, db *sql.DB, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	content, err := Migrations.ReadFile("migration/00001_idempotency.sql")
	if err != nil {
		return err
	}
	_, up, _ := strings.Cut(string(content), "-- +goose Up\n")
	up, _, _ = strings.Cut(up, "-- +goose Down\n")
	for _, name := range []string{"idempotency", "idempotency_fence", "idempotency_version"} {
		up = strings.ReplaceAll(up, "`"+name+"`", "`"+o.prefix+name+"`")
	}
	for statement := range strings.SplitSeq(up, ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%w: %w", ErrSchema, err)
		}
	}
	return nil
}
