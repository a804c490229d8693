// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/zap"
)

const dialLimit = 5 * time.Second

// OpenPool makes the pool that [Open] would, for an application that shares its
// life cycle with other parts: give it to [New], and to nobody else. The caller
// closes it. It sends nothing.
func OpenPool(dsn string, opts ...Option) (*sql.DB, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	return openPool(dsn, o)
}

// openPool parses the DSN and makes the pool. Its errors say nothing of what
// the DSN holds: a misplaced sign makes a password look like a host.
func openPool(dsn string, o options) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("%w: the DSN is not user:password@tcp(host:port)/database (its text is withheld: it may hold a password)", ErrOption)
	}
	if cfg.DBName == "" {
		return nil, fmt.Errorf("%w: the DSN names no database", ErrOption)
	}
	// One round trip for each statement, and nothing prepared on the server.
	cfg.InterpolateParams = true
	// Escaping is safe in UTF-8; in some older character sets it is not.
	cfg.Collation = ""
	if err := cfg.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		return nil, fmt.Errorf("%w: charset: %w", ErrOption, err)
	}
	// The limits of statements are ours and bound everything; a shorter one
	// would cut off those that may wait. Only the pool dials on its own account,
	// without a limit of ours.
	cfg.ReadTimeout, cfg.WriteTimeout, cfg.Timeout = 0, 0, dialLimit
	// A refusal of a read-only server is to be seen, not repeated elsewhere.
	cfg.RejectReadOnly = false
	cfg.MultiStatements = false
	cfg.CheckConnLiveness = true
	cfg.Logger = driverLog{o.logger}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: the DSN's parameters contradict each other (its text is withheld: it may hold a password)", ErrOption)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(o.maxOpen)
	db.SetMaxIdleConns(o.maxOpen)
	db.SetConnMaxIdleTime(time.Minute)
	db.SetConnMaxLifetime(maxAge)
	return db, nil
}

// driverLog takes what the driver would print to standard error.
type driverLog struct{ to *zap.Logger }

func (l driverLog) Print(v ...any) {
	if e := l.to.Check(zap.DebugLevel, "mysql driver"); e != nil {
		e.Write(zap.String("message", fmt.Sprint(v...)))
	}
}
