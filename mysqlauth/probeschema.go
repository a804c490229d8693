// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/tierlock/tierlock/tier/driver"
)

// columns are the ones whose types the rules rest on.
var columns = map[string]string{
	"lock_key": "varbinary(320)", "token": "binary(16)", "fence": "bigint unsigned", "guard": "bigint unsigned",
	"holder": "varbinary(128)", "acquired_at": "datetime(6)", "expires_at": "datetime(6)",
}

func (p *probe) schema() error {
	engines := make(map[string]string)
	err := p.s.query(p.timeout, func(rows *sql.Rows) error {
		var name string
		var engine sql.NullString
		err := rows.Scan(&name, &engine)
		engines[strings.ToLower(name)] = engine.String
		return err
	}, "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (?, ?, ?, ?)",
		p.tables.names()...)
	if err != nil {
		return err
	}
	for _, name := range p.tables.names() {
		switch engine, exists := engines[strings.ToLower(name.(string))]; {
		case !exists:
			p.found(driver.ClassConfig, adviceSchema, "table %s is missing, or the user may not see it", name)
		case !strings.EqualFold(engine, "InnoDB"):
			p.found(driver.ClassConfig, "convert it: ALTER TABLE ... ENGINE = InnoDB", "table %s is %s, not InnoDB", name, engine)
		}
	}
	if p.pointless = len(engines) < len(p.tables.names()); p.pointless {
		return nil
	}
	return errors.Join(p.columns(), p.version())
}

func (p *probe) columns() error {
	types := make(map[string]string)
	err := p.s.query(p.timeout, func(rows *sql.Rows) error {
		var name, kind string
		err := rows.Scan(&name, &kind)
		// MariaDB gives integers a display width.
		types[strings.ToLower(name)] = strings.Replace(strings.ToLower(kind), "bigint(20)", "bigint", 1)
		return err
	}, "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?",
		p.tables.names()[0])
	for name, want := range columns {
		if got := types[name]; err == nil && got != want {
			p.found(driver.ClassConfig, adviceSchema, "column %s of the lease table is %q, not %s: keys could merge or times be lost", name, got, want)
		}
	}
	return err
}

// version keeps the rule of the package's documentation.
func (p *probe) version() error {
	var version sql.NullInt64
	err := p.s.query(p.timeout, func(rows *sql.Rows) error { return rows.Scan(&version) },
		"SELECT MAX(version) FROM "+p.tables.version)
	switch {
	case err != nil || version.Int64 == schemaVersion:
		return err
	case version.Int64 < schemaVersion:
		p.found(driver.ClassConfig, "run EnsureSchema of this release, or its migrations",
			"the schema has version %d, this driver needs %d", version.Int64, schemaVersion)
		return nil
	}
	readableBy := version
	err = p.s.query(p.timeout, func(rows *sql.Rows) error { return rows.Scan(&readableBy) },
		"SELECT MAX(COALESCE(readable_by, version)) FROM "+p.tables.version+" WHERE version > ?", schemaVersion)
	if errorNumber(err) == 1054 {
		err = nil // nothing ever said who can read it
	}
	if err == nil && readableBy.Int64 > schemaVersion {
		p.found(driver.ClassConfig, "deploy the release that the schema is for, or one that can read it",
			"the schema has version %d, this driver needs %d, and only those from %d on can read it",
			version.Int64, schemaVersion, readableBy.Int64)
	}
	return err
}

func (p *probe) floor() error {
	found := false
	err := p.s.query(p.timeout, func(rows *sql.Rows) error {
		found = true
		var fence, start uint64
		var micros int64
		return rows.Scan(&fence, &start, &micros)
	}, p.tables.readFloor())
	if err == nil && !found {
		return errNoFloor
	}
	return err
}
