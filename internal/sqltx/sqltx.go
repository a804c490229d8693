// SPDX-License-Identifier: Apache-2.0

// Package sqltx tells transactions of database/sql, and of what wraps them, from what
// is none, and ends them in bounded time.
package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Tx is a transaction, as *sql.Tx, *sqlx.Tx and GORM's ConnPool are.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// What a Tx may turn out to be.
var (
	ErrNil  = errors.New("it is nil")
	ErrPool = errors.New("it is a pool: each statement is committed by itself")
	ErrNone = errors.New("it is no transaction: each statement is committed by itself")
)

// Refuse tells, without I/O, what is certainly no transaction.
func Refuse(tx Tx) error {
	if tx == nil || reflect.ValueOf(tx).Kind() == reflect.Pointer && reflect.ValueOf(tx).IsNil() {
		return ErrNil
	}
	if _, pool := tx.(interface{ SetMaxOpenConns(int) }); pool {
		return ErrPool
	}
	return nil
}

// savepoint is a name that nobody else uses.
const savepoint = "tierlock_confirm"

// Ask asks the server about a tx whose type does not tell: it returns ErrPool,
// ErrNone, or the error of a statement, after which the transaction has to be rolled
// back.
//
// A savepoint outlives its statement only inside a transaction, with
// autocommit=0 and after BEGIN by hand too, so the server knows one. Of a pool's
// connections it may be the first that has the savepoint and another that is asked
// for it, which gives the same answer.
func Ask(ctx context.Context, tx Tx) error {
	if _, ends := tx.(interface {
		Commit() error
		Rollback() error
	}); ends {
		return nil
	}
	_, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
	}
	switch {
	case err == nil:
		return nil
	case Answered(err, 1305): // no such savepoint
		return ErrNone
	case !Answered(err, 1295): // cannot be prepared
		return err
	case onPool(tx):
		return ErrPool
	}
	return nil // it cannot be told
}

// onPool reports that tx stands on a pool, as GORM's prepared statements outside
// a transaction do: inside one they have the methods that end it.
func onPool(tx Tx) bool {
	p, ok := tx.(interface{ GetDBConn() (*sql.DB, error) })
	if !ok {
		return false
	}
	db, err := p.GetDBConn()
	return err == nil && db != nil
}

// Answered reports that the server has answered with an error of this number.
func Answered(err error, number uint16) bool {
	server, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && server.Number == number
}

// RollbackLimit bounds a rollback on a server that says nothing.
const RollbackLimit = time.Second

// Rollback ends tx, in bounded time; a broken connection has ended it already, so
// its error says nothing.
func Rollback(ctx context.Context, tx Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackLimit)
	defer cancel()
	_, _ = tx.ExecContext(ctx, "ROLLBACK") // the driver drops a connection that does not answer
	if r, ok := tx.(interface{ Rollback() error }); ok {
		_ = r.Rollback()
	}
}

// The session waits briefly for a locked row, a second that is, and then as before.
// No statement can say it for itself on both engines.
const (
	WaitBriefly  = "SET @tierlock_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = 1"
	WaitAsBefore = "SET innodb_lock_wait_timeout = @tierlock_wait"
)
