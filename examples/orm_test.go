// SPDX-License-Identifier: Apache-2.0

// Package examples has guarded writes in transactions of other libraries, which the
// module itself does not depend on. They are run as tests, on a real server.
package examples

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

func TestMain(m *testing.M) { stack.Main(m).Run() }

// payWithSqlx is a guarded write in a transaction of sqlx.
func payWithSqlx(ctx context.Context, db *sqlx.DB, guard *idempotency.Guard, lease *tier.Lease, r idempotency.Request) (result idempotency.Result, err error) {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return result, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	result, err = guard.OnceTx(ctx, tx, lease, r, func(ctx context.Context) ([]byte, error) {
		account := struct{ Cents int64 }{}
		if err := tx.GetContext(ctx, &account, "SELECT cents FROM account WHERE id = ?", "ada"); err != nil {
			return nil, err
		}
		_, err := tx.NamedExecContext(ctx, "UPDATE account SET cents = :cents WHERE id = :id", map[string]any{"id": "ada", "cents": account.Cents - 1})
		return fmt.Append(nil, account.Cents-1), err
	})
	if err != nil {
		return result, err
	}
	return result, tx.Commit()
}

// account is a model of GORM.
type account struct {
	ID    string `gorm:"primaryKey"`
	Cents int64
}

func (account) TableName() string { return "account" }

// payWithGORM is one in a transaction of GORM, whose connection is in its statement.
func payWithGORM(ctx context.Context, db *gorm.DB, guard *idempotency.Guard, lease *tier.Lease, r idempotency.Request) (result idempotency.Result, err error) {
	err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		result, err = guard.OnceTx(ctx, tx.Statement.ConnPool, lease, r, func(context.Context) ([]byte, error) {
			a := account{ID: "ada"}
			if err := tx.First(&a).Error; err != nil {
				return nil, err
			}
			a.Cents--
			return fmt.Append(nil, a.Cents), tx.Save(&a).Error
		})
		return err
	})
	return result, err
}

func TestOnceTx(t *testing.T) {
	s := tiers.New(t, stack.MariaDB)
	if err := idempotency.EnsureSchema(t.Context(), s.Admin); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "CREATE TABLE account (id VARCHAR(20) PRIMARY KEY, cents BIGINT NOT NULL)")
	s.Exec(t, "INSERT INTO account VALUES ('ada', 10)")
	n := s.Node(t)
	locker, err := tier.New(n.Filter, n.Authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	db, err := sql.Open("mysql", s.Database.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	guard, err := idempotency.New(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close(context.Background()) })
	onGORM, err := gorm.Open(mysql.New(mysql.Config{Conn: db}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	onSqlx := sqlx.NewDb(db, "mysql")
	cents := 10
	for library, pay := range map[string]func(ctx context.Context, lease *tier.Lease, r idempotency.Request) (idempotency.Result, error){
		"sqlx": func(ctx context.Context, lease *tier.Lease, r idempotency.Request) (idempotency.Result, error) {
			return payWithSqlx(ctx, onSqlx, guard, lease, r)
		},
		"GORM": func(ctx context.Context, lease *tier.Lease, r idempotency.Request) (idempotency.Result, error) {
			return payWithGORM(ctx, onGORM, guard, lease, r)
		},
	} {
		cents--
		lease, err := locker.Acquire(t.Context(), "account/ada")
		if err != nil {
			t.Fatal(err)
		}
		fingerprint, err := idempotency.Fingerprint("pay", 1)
		if err != nil {
			t.Fatal(err)
		}
		r := idempotency.Request{Key: "payment by " + library, Fingerprint: fingerprint, LockKey: "account/ada"}
		for _, replayed := range []bool{false, true} {
			result, err := pay(t.Context(), lease, r)
			if err != nil || string(result.Body) != fmt.Sprint(cents) || result.Replayed != replayed {
				t.Errorf("%s: %q, replayed %v, want %d, %v: %v", library, result.Body, result.Replayed, cents, replayed, err)
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		r.Key += " again"
		if _, err := pay(t.Context(), lease, r); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("%s: after release: %v", library, err)
		}
		if n := s.Count(t, "SELECT cents FROM account"); n != cents {
			t.Errorf("%s: %d cents, want %d", library, n, cents)
		}
	}
}
