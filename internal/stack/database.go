// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// Database is an empty database with a user who may SELECT, INSERT, UPDATE and DELETE in it, and nothing else.
type Database struct {
	Name string

	server   *Server
	password string
}

// AdminDSN is for a user who may do everything. db may be empty.
func (s *Server) AdminDSN(db string) string { return s.dsn(func(c *mysql.Config) { c.DBName = db }) }

func (s *Server) dsn(edit func(*mysql.Config)) string {
	cfg, err := mysql.ParseDSN(s.admin)
	if err != nil {
		panic("stack: AdminDSN of " + s.engine.String() + ": not a SQL server") // a mistake in the test, not of the server
	}
	edit(cfg)
	return cfg.FormatDSN()
}

// NewDatabase makes a database under a name that no other has, and its user. prefix is lower-case letters, at most 12.
func (s *Server) NewDatabase(ctx context.Context, prefix string) (*Database, error) {
	d := &Database{Name: prefix + randomHex(6), server: s, password: randomHex(16)}
	err := s.exec(ctx,
		"CREATE DATABASE "+d.Name,
		// The user is named like the database; letters and digits only, so nothing here needs quoting or can match more.
		fmt.Sprintf("CREATE USER %s@'%%' IDENTIFIED BY '%s'", d.Name, d.password),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.* TO %s@'%%'", d.Name, d.Name),
	)
	if err != nil {
		return nil, fmt.Errorf("stack: make a database: %w", err)
	}
	return d, nil
}

// Server is where the database lives.
func (d *Database) Server() *Server { return d.server }

// DSN is for the least privileged user.
func (d *Database) DSN() string { return d.DSNAt(d.server.addr) }

// DSNAt is DSN at another host:port, such as a proxy's.
func (d *Database) DSNAt(addr string) string {
	return d.server.dsn(func(c *mysql.Config) {
		c.User, c.Passwd, c.DBName, c.Addr = d.Name, d.password, d.Name, addr
	})
}

// User and Password are those of DSN, for tests that look for a leaked password or revoke a right.
func (d *Database) User() string { return d.Name }

// Password is the least privileged user's.
func (d *Database) Password() string { return d.password }

// AdminDSN is for a user who may do everything, with this database chosen.
func (d *Database) AdminDSN() string { return d.server.AdminDSN(d.Name) }

// Exec runs statements as admin in this database, for a test's set-up.
func (d *Database) Exec(ctx context.Context, statements ...string) error {
	return d.server.exec(ctx, append([]string{"USE " + d.Name}, statements...)...)
}

// Drop removes the database and its user.
func (d *Database) Drop(ctx context.Context) error {
	return d.server.exec(ctx, "DROP DATABASE IF EXISTS "+d.Name, fmt.Sprintf("DROP USER IF EXISTS %s@'%%'", d.Name))
}

// exec runs statements one after another on one connection as admin.
func (s *Server) exec(ctx context.Context, statements ...string) (err error) {
	db, err := sql.Open("mysql", s.AdminDSN(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, statement := range statements {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
