// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// What else can come of [Versioned.Update].
var (
	// ErrConflict means that others changed the row in every attempt there was.
	// Nothing was written; trying again is safe.
	ErrConflict error = &sentinel{"idempotency: row was changed by others", http.StatusConflict}
	// ErrNoRow means that the row is not there, or has NULL for a version.
	ErrNoRow error = &sentinel{"idempotency: no such row", http.StatusNotFound}
	// ErrUnknown means that the connection was lost with the reply to COMMIT: the
	// change was written or it was not, once at most. Read the row before trying
	// again.
	ErrUnknown error = &sentinel{"idempotency: outcome is unknown", http.StatusInternalServerError}
)

// Versioned changes rows of one table that have a version column, without any lock:
// a change that others got ahead of is thrown away and made again from what they
// left. It is for rows that are rarely contended; where many want the same row, a
// lock keeps the order, and where a change must happen once, [Guard.Once] does. All
// methods are safe for concurrent use.
type Versioned struct {
	db       *sql.DB
	read     string
	bump     string
	attempts int
}

// VersionedOption changes a default of [NewVersioned].
type VersionedOption interface{ applyVersioned(*Versioned) }

type versionedOption func(*Versioned)

func (o versionedOption) applyVersioned(v *Versioned) { o(v) }

// WithAttempts sets how many times a change is tried in all, from 1 to 100.
// Default: 5.
func WithAttempts(n int) VersionedOption {
	return versionedOption(func(v *Versioned) { v.attempts = n })
}

const (
	defaultAttempts = 5
	mostAttempts    = 100
)

// identifierPattern is what needs no thought inside back quotes.
var identifierPattern = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}$`)

// NewVersioned is for the rows of table, which may be "schema.table", in the
// database of db. keyColumn is unique, and versionColumn a number that everybody
// who changes such a row raises, NOT NULL. It sends nothing.
//
// Errors: [ErrOption].
func NewVersioned(db *sql.DB, table, keyColumn, versionColumn string, opts ...VersionedOption) (*Versioned, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrOption)
	}
	schema, name, qualified := strings.Cut(table, ".")
	parts := []string{schema, keyColumn, versionColumn}
	quoted := "`" + schema + "`"
	if qualified {
		parts = append(parts, name)
		quoted += ".`" + name + "`"
	}
	for _, part := range parts {
		if !identifierPattern.MatchString(part) {
			return nil, fmt.Errorf("%w: identifier %.80q must match %v", ErrOption, part, identifierPattern)
		}
	}
	if strings.EqualFold(keyColumn, versionColumn) {
		return nil, fmt.Errorf("%w: %q is the key and the version", ErrOption, keyColumn)
	}
	v := &Versioned{
		db:       db,
		read:     fmt.Sprintf("SELECT `%s` FROM %s WHERE `%s` = ?", versionColumn, quoted, keyColumn),
		bump:     fmt.Sprintf("UPDATE %s SET `%s` = `%[2]s` + 1 WHERE `%s` = ? AND `%[2]s` = ?", quoted, versionColumn, keyColumn),
		attempts: defaultAttempts,
	}
	for _, o := range opts {
		if o != nil {
			o.applyVersioned(v)
		}
	}
	if v.attempts < 1 || v.attempts > mostAttempts {
		return nil, fmt.Errorf("%w: %d attempts, from 1 to %d are possible", ErrOption, v.attempts, mostAttempts)
	}
	return v, nil
}

// Update runs change in a transaction at READ COMMITTED that commits only if nobody
// else has changed the row since it began: it reads the row's version, runs change,
// and raises the version last. change reads and writes through tx alone, must leave
// the version column as it is, and is run again, from a new transaction, when others
// were first, when the server rolled the transaction back, or when the connection was
// lost before COMMIT. It must not end tx, nor have the server end it, as DDL does.
//
// Whatever change writes should belong to the row: what it reads elsewhere may have
// changed by the time of COMMIT.
//
// An error of change rolls everything back and is returned as it is. Others:
// [ErrNoRow], [ErrConflict] after the last attempt, [ErrUnknown], which is never
// tried again since a version does not say who raised it, [ErrRetryTx], [ErrStoreDown],
// [ErrTxDone], [ErrSchema] for a table or a column that is missing, the context's.
func (v *Versioned) Update(ctx context.Context, key any, change func(ctx context.Context, tx *sql.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := v.try(ctx, key, change)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrUnknown), !errors.Is(err, ErrConflict) && !retryable(err):
			return err
		case attempt >= v.attempts:
			return fmt.Errorf("update: %d attempts: %w", attempt, err)
		}
		if waited := sleep(ctx, backOff(min(attempt, repeats))); waited != nil {
			return fmt.Errorf("update: %w, after %w", waited, err)
		}
	}
}

func (v *Versioned) try(ctx context.Context, key any, change func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := beginReadCommitted(ctx, v.db)
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	committed := false
	defer func() {
		if !committed { // a panic too
			rollback(ctx, tx)
		}
	}()
	version, err := v.version(ctx, tx, key)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+versionedSavepoint); err != nil {
		return fmt.Errorf("update: %w", classify(ctx, err, ErrSchema))
	}
	if err := change(ctx, tx); err != nil {
		if rolledBackByServer(err) && !errors.Is(err, ErrRetryTx) {
			return fmt.Errorf("%w: %w", ErrRetryTx, err)
		}
		return err
	}
	if _, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT "+versionedSavepoint); isAnswer(err, 1305) {
		return fmt.Errorf("%w: update: the change has ended it, or went on after the server had, and each statement since was committed by itself", ErrTxDone)
	} else if err != nil {
		return fmt.Errorf("update: %w", classify(ctx, err, ErrSchema))
	}
	result, err := tx.ExecContext(ctx, v.bump, key, version)
	if err != nil {
		return fmt.Errorf("update: raise the version: %w", classify(ctx, err, ErrSchema))
	}
	raised, err := result.RowsAffected()
	switch {
	case err != nil:
		return fmt.Errorf("update: %w", err)
	case raised == 0:
		return fmt.Errorf("update: %w", ErrConflict)
	case raised > 1:
		return fmt.Errorf("%w: update: %d rows have the key, its column must be unique", ErrOption, raised)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("update: %w", context.Cause(ctx))
	}
	limited, cancel := context.WithTimeout(ctx, commitLimit)
	defer cancel()
	_, err = tx.ExecContext(limited, "COMMIT") // unlike tx.Commit it ends with its context
	server := serverError(err)
	switch {
	case err == nil:
		committed = true
		go func() { _ = tx.Rollback() }() // gives the connection back, which takes a round trip
		return nil
	case server != nil && rolledBackByServer(server):
		return fmt.Errorf("update: %w: %w", ErrRetryTx, err)
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, sqldriver.ErrBadConn): // nothing was sent
		return fmt.Errorf("update: %w", classify(ctx, err, ErrSchema))
	}
	return fmt.Errorf("update: %w: %w", ErrUnknown, err)
}

// versionedSavepoint is inside the transaction alone: that it is still there proves
// that the version is raised in the transaction that has read it.
const versionedSavepoint = "tierlock_versioned"

// version reads the row's version as the number it is: compared as text, large ones
// would be equal.
func (v *Versioned) version(ctx context.Context, tx *sql.Tx, key any) (any, error) {
	var version any
	err := tx.QueryRowContext(ctx, v.read, key).Scan(&version)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && version == nil:
		return nil, fmt.Errorf("update: %w", ErrNoRow)
	case err != nil:
		return nil, fmt.Errorf("update: read the version: %w", classify(ctx, err, ErrSchema))
	}
	switch version.(type) {
	case int64, uint64:
		return version, nil
	}
	return nil, fmt.Errorf("%w: update: the version column is no integer", ErrOption)
}

// beginReadCommitted begins a transaction whose beginning alone ctx bounds, as
// [Guard.begin] does.
func beginReadCommitted(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	defer stop()
	tx, err := db.BeginTx(own, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, notBegun(ctx, err)
	}
	return tx, nil
}
