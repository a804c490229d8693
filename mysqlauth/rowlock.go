// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/sqltx"
)

// What can come of a RowLock, to be asked for with errors.Is.
var (
	// ErrRowBusy means that another transaction has the row. Nothing is wrong.
	ErrRowBusy = errors.New("mysqlauth: another transaction has the row")
	// ErrNoRow means that there is no row of the key, so that nothing was locked.
	ErrNoRow = errors.New("mysqlauth: no row to lock")
	// ErrAccess means that the column has no unique index that the server uses: it
	// would lock other rows than the one, or all of them.
	ErrAccess = errors.New("mysqlauth: rows are not locked one at a time")
	// ErrNoTx means that what was given is no transaction: the lock would end with
	// its own statement.
	ErrNoTx = errors.New("mysqlauth: not a transaction")
	// ErrRolledBack means that the server has dropped the transaction, for a
	// deadlock or a lost connection: all of it may be tried again.
	ErrRolledBack = errors.New("mysqlauth: transaction rolled back, try it again")
)

// Tx is a transaction of the caller's, as *sql.Tx, *sqlx.Tx and GORM's ConnPool are.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// RowLock locks rows inside the caller's own transactions: who has locked a row has
// it until COMMIT or ROLLBACK, and what he writes in between is seen with the lock's
// end. It needs no lease, no fence and no second connection, holds for one
// transaction and not beyond, and lives and dies with it. The rows are those of the
// table rowlock, which [RowLock.Prepare] makes and no sweeper removes, or those of a
// table of the caller's.
//
// All methods are safe for concurrent use.
type RowLock struct {
	db     *sql.DB
	table  string // quoted
	column string
	own    bool
}

// RowLockOption changes a default of a RowLock.
type RowLockOption func(*RowLock) error

// OnRowsOf locks the rows of a table of the caller's by a column with a unique
// index. The table may have its schema before it: "shop.product".
func OnRowsOf(table, column string) RowLockOption {
	return func(l *RowLock) error {
		parts := strings.Split(table, ".")
		for _, name := range append(slices.Clone(parts), column) {
			if !identifier.MatchString(name) || len(parts) > 2 {
				return fmt.Errorf("%w: table %q, column %q: a name has letters, digits, _ and $", ErrOption, table, column)
			}
		}
		for i := range parts {
			parts[i] = quote(parts[i])
		}
		l.table, l.column, l.own = strings.Join(parts, "."), quote(column), false
		return nil
	}
}

// WithRowLockPrefix puts letters, digits and underscores before the name of the table
// rowlock, as [WithTablePrefix] does. Default: none.
func WithRowLockPrefix(prefix string) RowLockOption {
	return func(l *RowLock) error {
		o, err := newOptions([]Option{WithTablePrefix(prefix)})
		if err == nil && l.own {
			l.table = newTables(o.prefix).rowlock
		}
		return err
	}
}

var identifier = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}$`)

// NewRowLock asks the server how it would lock a row, and refuses with [ErrAccess]
// what would lock more than one. db is the business's own pool.
func NewRowLock(ctx context.Context, db *sql.DB, opts ...RowLockOption) (*RowLock, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrOption)
	}
	l := &RowLock{db: db, table: newTables("").rowlock, column: quote("lock_key"), own: true}
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt(l); err != nil {
			return nil, err
		}
	}
	return l, l.explain(ctx)
}

// explain proves that the statement finds its row by a unique index. Of a row that
// is not there the server says so only after it has looked there, and nowhere else.
func (l *RowLock) explain(ctx context.Context) error {
	rows, err := l.db.QueryContext(ctx, "EXPLAIN FORMAT=TRADITIONAL "+l.statement(""), []byte("tierlock"))
	if err != nil {
		return fmt.Errorf("mysqlauth: row lock on %s: %w", l.table, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	var access, extra sql.NullString
	into := make([]any, len(names))
	for i, name := range names {
		switch strings.ToLower(name) {
		case "type":
			into[i] = &access
		case "extra":
			into[i] = &extra
		default:
			into[i] = new(sql.RawBytes)
		}
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if access.String != "const" && !strings.Contains(extra.String, "const table") {
			return fmt.Errorf("%w: %s by %s: access %q (%s), want a unique index and const", ErrAccess, l.table, l.column, access.String, extra.String)
		}
	}
	return rows.Err()
}

func (l *RowLock) statement(how string) string {
	return "SELECT 1 FROM " + l.table + " WHERE " + l.column + " = ? FOR UPDATE" + how
}

// Prepare makes the rows of keys, where they are missing, in a transaction of its
// own: ahead of the first lock, when a key becomes known, never inside the
// transaction that locks. It is for the table rowlock; a table of the caller's has
// its own rows.
func (l *RowLock) Prepare(ctx context.Context, keys ...string) error {
	if !l.own {
		return fmt.Errorf("%w: the rows of %s are not ours to make", ErrOption, l.table)
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return err
		}
	}
	for batch := range slices.Chunk(slices.Sorted(slices.Values(keys)), maxBatch) {
		if err := l.insert(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func (l *RowLock) insert(ctx context.Context, keys []string) error {
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = []byte(key)
	}
	for try := 0; ; try++ {
		tx, err := l.db.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("mysqlauth: prepare: %w", err)
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO "+l.table+" (lock_key) VALUES "+list("(?)", len(keys))+" ON DUPLICATE KEY UPDATE lock_key = lock_key", args...)
		if err == nil {
			return tx.Commit()
		}
		sqltx.Rollback(ctx, tx)
		if try == maxPrepare || !rolledBack(err) {
			return fmt.Errorf("mysqlauth: prepare: %w", err)
		}
		if err := pause(ctx, jitter(try)); err != nil {
			return err
		}
	}
}

// maxPrepare is how often a Prepare that met another is tried again.
const maxPrepare = 5

// Lock locks the key's row for tx, and waits for it as long as the session's
// innodb_lock_wait_timeout says, 50 s by default. ctx bounds it as well, at the cost
// of the connection.
//
// After an error tx was rolled back: of some of them the server has dropped it and the
// session goes on in autocommit. Errors: [ErrRowBusy], [ErrNoRow], [ErrNoTx],
// [ErrRolledBack], the context's.
func (l *RowLock) Lock(ctx context.Context, tx Tx, key string) error {
	return l.lock(ctx, tx, key, "", nil)
}

// LockWithin is Lock that waits for a time of the call's own, in whole seconds and at
// least one. The session's limit is set and set back; the server's global one is not
// touched. No engine bounds a wait by less: see [RowLock.TryLock].
func (l *RowLock) LockWithin(ctx context.Context, tx Tx, key string, wait time.Duration) error {
	seconds := int64(max(1, math.Ceil(min(wait, maxRowWait).Seconds())))
	return l.lock(ctx, tx, key, "", &seconds)
}

// maxRowWait is the server's own upper bound, rounded.
const maxRowWait = 365 * 24 * time.Hour

// TryLock is Lock that does not wait.
func (l *RowLock) TryLock(ctx context.Context, tx Tx, key string) error {
	return l.lock(ctx, tx, key, " NOWAIT", nil)
}

func (l *RowLock) lock(ctx context.Context, tx Tx, key, how string, seconds *int64) error {
	if err := l.usable(ctx, tx); err != nil {
		return err
	}
	if seconds != nil {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SET @tierlock_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = %d", *seconds)); err != nil {
			return l.failed(ctx, tx, err)
		}
	}
	var one int
	err := tx.QueryRowContext(ctx, l.statement(how), []byte(key)).Scan(&one)
	if seconds != nil {
		restoring, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.RollbackLimit)
		defer cancel()
		if _, unset := tx.ExecContext(restoring, sqltx.WaitAsBefore); err == nil {
			err = unset
		}
	}
	return l.failed(ctx, tx, err)
}

// LockAny locks one of the keys' rows that nobody has locked, without waiting, and
// returns its key: work that any of several may take. Errors: those of Lock; rows that
// are all taken are [ErrRowBusy].
func (l *RowLock) LockAny(ctx context.Context, tx Tx, keys ...string) (string, error) {
	if len(keys) == 0 || len(keys) > maxBatch {
		return "", fmt.Errorf("%w: %d keys, from 1 to %d are possible", ErrOption, len(keys), maxBatch)
	}
	if err := l.usable(ctx, tx); err != nil {
		return "", err
	}
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = []byte(key)
	}
	among := " FROM " + l.table + " WHERE " + l.column + " IN (" + list("?", len(keys)) + ")"
	var key string
	err := tx.QueryRowContext(ctx, "SELECT "+l.column+among+" LIMIT 1 FOR UPDATE SKIP LOCKED", args...).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		var n int // outside tx, where a plain read waits for locked rows at SERIALIZABLE
		if err = l.db.QueryRowContext(ctx, "SELECT COUNT(*)"+among, args...).Scan(&n); err == nil && n > 0 {
			err = ErrRowBusy
		} else if err == nil {
			err = sql.ErrNoRows
		}
	}
	return key, l.failed(ctx, tx, err)
}

func (l *RowLock) usable(ctx context.Context, tx Tx) error {
	if err := sqltx.Refuse(tx); err != nil {
		return fmt.Errorf("%w: %w", ErrNoTx, err)
	}
	switch err := sqltx.Ask(ctx, tx); {
	case err == nil:
		return nil
	case errors.Is(err, sqltx.ErrPool), errors.Is(err, sqltx.ErrNone):
		return fmt.Errorf("%w: %w", ErrNoTx, err)
	default:
		return l.failed(ctx, tx, err)
	}
}

// failed rolls tx back when there is an error, and says what it means.
func (l *RowLock) failed(ctx context.Context, tx Tx, err error) error {
	if err == nil {
		return nil
	}
	sqltx.Rollback(ctx, tx)
	_, answered := errors.AsType[*mysql.MySQLError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("mysqlauth: row lock: %w", errors.Join(context.Cause(ctx), err))
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w in %s: make it first", ErrNoRow, l.table)
	case errors.Is(err, ErrRowBusy):
		return err
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", ErrNoTx, err)
	case sqltx.Answered(err, 1205), sqltx.Answered(err, 3572):
		return fmt.Errorf("%w: %w", ErrRowBusy, err)
	case !answered, rolledBack(err):
		return fmt.Errorf("%w: %w", ErrRolledBack, withhold(err))
	}
	return fmt.Errorf("mysqlauth: row lock: %w", withhold(err))
}
