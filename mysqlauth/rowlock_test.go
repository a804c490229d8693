// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

// isolations are those that a business may have.
var isolations = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

// business is a pool of the library's own user, who may do no more than it needs.
func business(t *testing.T, d *stack.Database) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", d.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func newRowLock(t *testing.T, db *sql.DB, opts ...RowLockOption) *RowLock {
	t.Helper()
	l, err := NewRowLock(t.Context(), db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func begin(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// TestRowLock_excludes has transactions read and write one number under the lock: at
// every isolation no update is lost, and none without the lock is kept.
func TestRowLock_excludes(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, db := openAdmin(t, d), business(t, d)
		mustExec(t, admin, "CREATE TABLE counter (id INT PRIMARY KEY, n INT NOT NULL)")
		l := newRowLock(t, db)
		if err := l.Prepare(t.Context(), "counter", "counter", "another"); err != nil {
			t.Fatal(err)
		}
		for i, level := range isolations {
			mustExec(t, admin, fmt.Sprintf("INSERT INTO counter VALUES (%d, 0)", i))
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 10 {
						if err := count(t.Context(), db, level, i, func(tx *sql.Tx) error { return l.Lock(t.Context(), tx, "counter") }); err != nil {
							t.Errorf("%v: %v", level, err)
						}
					}
				})
			}
			all.Wait()
			var n int
			if err := db.QueryRowContext(t.Context(), "SELECT n FROM counter WHERE id = ?", i).Scan(&n); err != nil || n != 80 {
				t.Errorf("%v: %d, want 80: %v", level, n, err)
			}
		}
	})
}

// count adds one to a number, by what it has read.
func count(ctx context.Context, db *sql.DB, level sql.IsolationLevel, id int, lock func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := lock(tx); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM counter WHERE id = ?", id).Scan(&n); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE counter SET n = ? WHERE id = ?", n+1, id); err != nil {
		return err
	}
	return tx.Commit()
}

// TestRowLock_held meets a row that another transaction has.
func TestRowLock_held(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		db := business(t, d)
		l := newRowLock(t, db)
		if err := l.Prepare(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		for _, level := range isolations {
			holder := begin(t, db, level)
			if err := l.Lock(t.Context(), holder, "a"); err != nil {
				t.Fatal(err)
			}
			if err := l.TryLock(t.Context(), holder, "a"); err != nil { // ours already
				t.Errorf("%v: again: %v", level, err)
			}
			for what, try := range map[string]func(tx *sql.Tx) error{
				"try":    func(tx *sql.Tx) error { return l.TryLock(t.Context(), tx, "a") },
				"within": func(tx *sql.Tx) error { return l.LockWithin(t.Context(), tx, "a", 100*time.Millisecond) },
				"any":    func(tx *sql.Tx) error { _, err := l.LockAny(t.Context(), tx, "a"); return err },
			} {
				start, tx := time.Now(), begin(t, db, level)
				if err := try(tx); !errors.Is(err, ErrRowBusy) {
					t.Errorf("%v, %s: %v", level, what, err)
				}
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("%v, %s: took %v", level, what, took)
				}
				if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("%v, %s: a transaction that was refused the row goes on: %v", level, what, err)
				}
			}
			tx := begin(t, db, level)
			if key, err := l.LockAny(t.Context(), tx, "a", "b"); err != nil || key != "b" {
				t.Errorf("%v: any of two: %q, %v", level, key, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			if err := l.Lock(ctx, begin(t, db, level), "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v: a wait that its context ends: %v", level, err)
			}
			cancel()
			if err := holder.Commit(); err != nil {
				t.Error(err)
			}
			free := begin(t, db, level)
			if err := l.LockWithin(t.Context(), free, "a", time.Second); err != nil {
				t.Errorf("%v: after COMMIT: %v", level, err)
			}
			var limit int
			if err := free.QueryRowContext(t.Context(), "SELECT @@innodb_lock_wait_timeout").Scan(&limit); err != nil || limit == 1 {
				t.Errorf("%v: the session waits %d s: %v", level, limit, err)
			}
			if err := free.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestRowLock_noRow: zero rows are never a lock.
func TestRowLock_noRow(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		db := business(t, d)
		l := newRowLock(t, db)
		for what, lock := range map[string]func(tx *sql.Tx) error{
			"lock":   func(tx *sql.Tx) error { return l.Lock(t.Context(), tx, "none") },
			"try":    func(tx *sql.Tx) error { return l.TryLock(t.Context(), tx, "none") },
			"within": func(tx *sql.Tx) error { return l.LockWithin(t.Context(), tx, "none", time.Second) },
			"any":    func(tx *sql.Tx) error { _, err := l.LockAny(t.Context(), tx, "none", "neither"); return err },
		} {
			if err := lock(begin(t, db, sql.LevelDefault)); !errors.Is(err, ErrNoRow) {
				t.Errorf("%s: %v, want ErrNoRow", what, err)
			}
		}
		for what, tx := range map[string]Tx{"a pool": db, "nil": (*sql.Tx)(nil)} {
			if err := l.Lock(t.Context(), tx, "none"); !errors.Is(err, ErrNoTx) {
				t.Errorf("%s: %v, want ErrNoTx", what, err)
			}
		}
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // of no interest
		if err := l.Lock(t.Context(), conn, "none"); !errors.Is(err, ErrNoTx) {
			t.Errorf("a connection: %v, want ErrNoTx", err)
		}
	})
}

// TestRowLock_access refuses columns by which the server would lock more than a row.
func TestRowLock_access(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		admin, db := openAdmin(t, d), business(t, d)
		mustExec(t, admin, "CREATE TABLE product (id INT PRIMARY KEY, sku VARCHAR(20) NOT NULL UNIQUE, kind VARCHAR(20) NOT NULL, note VARCHAR(20), KEY (kind))")
		for _, rows := range []int{0, 3} {
			for i := range rows {
				mustExec(t, admin, fmt.Sprintf("INSERT INTO product VALUES (%d, 'sku-%d', 'a', 'n')", i, i))
			}
			for column, want := range map[string]error{"id": nil, "sku": nil, "kind": ErrAccess, "note": ErrAccess} {
				if _, err := NewRowLock(t.Context(), db, OnRowsOf("product", column)); !errors.Is(err, want) {
					t.Errorf("%d rows, %s: %v, want %v", rows, column, err, want)
				}
			}
		}
		for _, names := range [][2]string{{"product", "id`"}, {"a.b.c", "id"}, {"", "id"}} {
			if _, err := NewRowLock(t.Context(), db, OnRowsOf(names[0], names[1])); !errors.Is(err, ErrOption) {
				t.Errorf("%q: %v, want ErrOption", names, err)
			}
		}
		if _, err := NewRowLock(t.Context(), db, OnRowsOf("missing", "id")); err == nil {
			t.Error("a table that is not there was accepted")
		}
		l := newRowLock(t, db, OnRowsOf(d.Name+".product", "sku"))
		if err := l.Prepare(t.Context(), "sku-9"); !errors.Is(err, ErrOption) {
			t.Errorf("prepare: %v", err)
		}
		first, second := begin(t, db, sql.LevelDefault), begin(t, db, sql.LevelDefault)
		if err := errors.Join(l.Lock(t.Context(), first, "sku-0"), l.TryLock(t.Context(), second, "sku-1")); err != nil {
			t.Errorf("two rows of one table: %v", err)
		}
		if err := l.TryLock(t.Context(), second, "sku-0"); !errors.Is(err, ErrRowBusy) {
			t.Errorf("a row that is locked: %v", err)
		}
	})
}

// TestRowLock_deadlock leaves nothing of the victim.
func TestRowLock_deadlock_J1(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		db := business(t, d)
		l := newRowLock(t, db)
		if err := l.Prepare(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		txs := []*sql.Tx{begin(t, db, sql.LevelDefault), begin(t, db, sql.LevelDefault)}
		errs := make(chan error, 2)
		var both sync.WaitGroup
		both.Add(2)
		for i, tx := range txs {
			go func() {
				err := l.Lock(t.Context(), tx, []string{"a", "b"}[i])
				both.Done()
				both.Wait()
				if err == nil {
					err = l.Lock(t.Context(), tx, []string{"b", "a"}[i])
				}
				if err == nil {
					err = tx.Commit()
				}
				errs <- err
			}()
		}
		first, second := <-errs, <-errs
		if (first == nil) == (second == nil) || !errors.Is(errors.Join(first, second), ErrRolledBack) {
			t.Errorf("a deadlock: %v and %v", first, second)
		}
	})
}

// TestRowLock_sweep has the sweeper leave the rows alone.
func TestRowLock_sweep(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		db := business(t, d)
		l := newRowLock(t, db)
		if err := l.Prepare(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t, d.DSN(), WithRetention(time.Minute)).Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Lock(t.Context(), begin(t, db, sql.LevelDefault), "a"); err != nil {
			t.Errorf("after a sweep: %v", err)
		}
	})
}
