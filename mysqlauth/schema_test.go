// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tierlock/tierlock/internal/stack"
)

// later are migrations of releases to come: 3 is readable by this release, 4
// by 3, and 5 forgets to say so.
var later = fstest.MapFS{
	"migration/00003_note.sql": {Data: []byte("-- +goose Up\n" +
		"ALTER TABLE `lease` ADD COLUMN `note` VARBINARY(64) NULL, ALGORITHM = INSTANT;\n" +
		"ALTER TABLE `floor` ADD COLUMN `spare` INT NULL;\n" +
		"ALTER TABLE `floor` ADD KEY `by_spare` (`spare`);\n" +
		"CREATE TABLE IF NOT EXISTS `lease_note` (`id` INT NOT NULL PRIMARY KEY) ENGINE = InnoDB;\n" +
		"INSERT INTO `schema_version` (`version`, `applied_at`, `readable_by`) VALUES (3, UTC_TIMESTAMP(6), 2) ON DUPLICATE KEY UPDATE `version` = `version`;\n" +
		"-- +goose Down\n")},
	"migration/00004_no_spare.sql": {Data: []byte("-- +goose Up\n" +
		"ALTER TABLE `floor` DROP COLUMN `spare`;\n" +
		"INSERT INTO `schema_version` (`version`, `applied_at`, `readable_by`) VALUES (4, UTC_TIMESTAMP(6), 3) ON DUPLICATE KEY UPDATE `version` = `version`;\n" +
		"-- +goose Down\n")},
	"migration/00005_forgets.sql": {Data: []byte("-- +goose Up\n" +
		"INSERT INTO `schema_version` (`version`, `applied_at`) VALUES (5, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE `version` = `version`;\n" +
		"-- +goose Down\n")},
}

// upTo are this release's migrations and later ones.
func upTo(t *testing.T, version int, prefix string) []migration {
	t.Helper()
	all, err := readMigrations(Migrations, prefix)
	if err != nil {
		t.Fatal(err)
	}
	more, err := readMigrations(later, prefix)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, more...)
	return all[:slices.IndexFunc(all, func(m migration) bool { return m.version == version })+1]
}

func mustEnsure(t *testing.T, db *sql.DB, all []migration) {
	t.Helper()
	if err := ensureSchema(t.Context(), db, "", all); err != nil {
		t.Fatal(err)
	}
}

// inEmpty runs a test on both engines, each in a database without tables.
func inEmpty(t *testing.T, test func(t *testing.T, d *stack.Database)) {
	t.Helper()
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			test(t, stack.SharedSQL(t, engine).CreateDatabase(t))
		})
	}
}

// execScript runs one as a client does that knows nothing of this package.
func execScript(t *testing.T, d *stack.Database, script string) {
	t.Helper()
	db, err := sql.Open("mysql", d.AdminDSN()+"?multiStatements=true")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // what was executed is done
	mustExec(t, db, script)
}

// effect is all that a schema is, with the rows that it starts with.
func effect(t *testing.T, db *sql.DB) string {
	t.Helper()
	var all strings.Builder
	for _, query := range []string{
		"SELECT TABLE_NAME, ENGINE, ROW_FORMAT, TABLE_COLLATION, CREATE_OPTIONS, TABLE_COMMENT FROM information_schema.TABLES" +
			" WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME",
		"SELECT TABLE_NAME, ORDINAL_POSITION, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLLATION_NAME, EXTRA, COLUMN_COMMENT" +
			" FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME, ORDINAL_POSITION",
		"SELECT TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME, NON_UNIQUE, SUB_PART, INDEX_TYPE FROM information_schema.STATISTICS" +
			" WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
		"SELECT 'floor', id, fence FROM floor ORDER BY id",
		"SELECT 'version', version FROM schema_version ORDER BY version",
	} {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		cells := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range cells {
			into[i] = &cells[i]
		}
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&all, cells)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

func versionsOf(t *testing.T, db *sql.DB, prefix string) string {
	t.Helper()
	var all sql.NullString
	if err := db.QueryRowContext(t.Context(), "SELECT GROUP_CONCAT(version ORDER BY version) FROM "+prefix+"schema_version").Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all.String
}

// The files are what goose reads as well, and keep the rules that EnsureSchema
// rests on.
func TestMigrations_form(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(Migrations, "*/*")
	if err != nil {
		t.Fatal(err)
	}
	lists := regexp.MustCompile(`^INSERT INTO .schema_version. \(([^)]*)\) VALUES \((\d+), .* ON DUPLICATE KEY UPDATE .version. = .version.$`)
	all := upTo(t, schemaVersion, "")
	if len(names) != schemaVersion || len(all) != schemaVersion {
		t.Fatalf("%d files, %d migrations, and the release has number %d", len(names), len(all), schemaVersion)
	}
	for i, name := range names {
		if !strings.HasPrefix(name, fmt.Sprintf("migration/%05d_", i+1)) || all[i].version != i+1 {
			t.Errorf("%s is number %d, version %d", name, i+1, all[i].version)
		}
		content, err := fs.ReadFile(Migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		var annotations []string
		for line := range strings.Lines(string(content)) {
			line = strings.TrimSuffix(line, "\n")
			code, isComment := strings.TrimSpace(line), strings.HasPrefix(strings.TrimSpace(line), "--")
			switch {
			case strings.Contains(line, "+goose"):
				annotations = append(annotations, line)
			case isComment && strings.HasSuffix(line, ";"), !isComment && strings.Contains(strings.TrimSuffix(line, ";"), ";"),
				!isComment && strings.Contains(line, "--"), strings.TrimRight(line, " \t") != line:
				t.Errorf("%s: a statement has an end of its own at the end of a line, and a comment a line of its own: %q", name, code)
			}
		}
		if want := []string{"-- +goose Up", "-- +goose Down"}; !slices.Equal(annotations, want) {
			t.Errorf("%s is annotated %q, want %q", name, annotations, want)
		}
		if !strings.HasSuffix(string(content), ";\n") {
			t.Errorf("%s does not end with a statement", name)
		}
		last := all[i].statements[len(all[i].statements)-1]
		if m := lists.FindStringSubmatch(last); m == nil || m[2] != fmt.Sprint(i+1) || i > 0 && !strings.Contains(m[1], "`readable_by`") {
			t.Errorf("%s does not end by listing itself, with who can read it: %s", name, last)
		}
	}
}

func TestSchema_isWhatTheMigrationsAddUpTo(t *testing.T) {
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		byHand := d.Server().CreateDatabase(t)
		execScript(t, byHand, Schema)
		if err := EnsureSchema(t.Context(), openAdmin(t, d)); err != nil {
			t.Fatal(err)
		}
		want := effect(t, openAdmin(t, d))
		if got := effect(t, openAdmin(t, byHand)); got != want {
			t.Errorf("Schema makes\n%s\nand the migrations\n%s", got, want)
		}
		up := d.Server().CreateDatabase(t)
		for version := 1; version <= schemaVersion; version++ {
			for _, down := range []bool{false, true, false} { // down and up again: as with goose
				execScript(t, up, part(t, version, down))
			}
		}
		if got := effect(t, openAdmin(t, up)); got != want {
			t.Errorf("the files make\n%s\nand EnsureSchema\n%s", got, want)
		}
	})
}

// part is one half of a migration's file.
func part(t *testing.T, version int, down bool) string {
	t.Helper()
	names, err := fs.Glob(Migrations, fmt.Sprintf("migration/%05d_*.sql", version))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	content, err := fs.ReadFile(Migrations, names[0])
	if err != nil {
		t.Fatal(err)
	}
	up, back, _ := strings.Cut(string(content), "-- +goose Down\n")
	if down {
		return back
	}
	return up
}

// testdata/version1.sql is the first schema as databases have it. Nothing in
// them changes but by migrations of their own.
func TestEnsureSchema_fromVersion1(t *testing.T) {
	script, err := os.ReadFile("testdata/version1.sql")
	if err != nil {
		t.Fatal(err)
	}
	inEmpty(t, func(t *testing.T, d *stack.Database) {
		admin := openAdmin(t, d)
		execScript(t, d, string(script))
		mustExec(t, admin, "UPDATE floor SET fence = 77")
		mustExec(t, admin, "UPDATE schema_version SET applied_at = '2001-01-01'")
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		g := mustClaim(t, a, claimOf("ns/k"))
		if err := EnsureSchema(t.Context(), admin); err != nil {
			t.Fatal(err)
		}
		fresh := d.Server().CreateDatabase(t)
		if err := EnsureSchema(t.Context(), openAdmin(t, fresh)); err != nil {
			t.Fatal(err)
		}
		kept := strings.Replace(effect(t, openAdmin(t, fresh)), "{floor true} {1 true} {0 true}", "{floor true} {1 true} {77 true}", 1)
		if got := effect(t, admin); got != kept {
			t.Errorf("version 1 became\n%s\nwant\n%s", got, kept)
		}
		mustEnsure(t, admin, upTo(t, 3, ""))
		var year int
		if err := admin.QueryRowContext(t.Context(), "SELECT YEAR(applied_at) FROM schema_version WHERE version = 1").Scan(&year); err != nil || year != 2001 {
			t.Errorf("version 1 was applied in %d, %v", year, err)
		}
		if got := versionsOf(t, admin, ""); got != "1,2,3" {
			t.Errorf("versions %s", got)
		}
		if err := a.Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
		mustRelease(t, a, "ns/k", g)
	})
}

func TestReadMigrations_refusesOthers(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"migration/1_short.sql":      "-- +goose Up\n-- +goose Down\n",
		"migration/00001_Case.sql":   "-- +goose Up\n-- +goose Down\n",
		"migration/00001_noup.sql":   "SELECT 1;\n-- +goose Down\n",
		"migration/00001_nodown.sql": "-- +goose Up\nSELECT 1;\n",
	} {
		if all, err := readMigrations(fstest.MapFS{name: {Data: []byte(content)}}, ""); err == nil {
			t.Errorf("%s: %v", name, all)
		}
	}
}
