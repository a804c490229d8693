// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// shop has a stock of 10 in the database of the lease table. Its user may read
// and update leases, as the documentation asks for, and no more.
type shop struct {
	*tiers.Tiers
	node   tiers.Node // of locker
	locker *tier.Locker
	peer   *tier.Locker // another process
	db     *sql.DB      // the business's own pool
	proxy  *stack.Proxy // on its way

	business string // the DSN of db
}

const (
	namespace = "shop"
	key       = "sku"
	ttl       = time.Second
)

// onBothEngines runs a test with a shop on each engine.
func onBothEngines(t *testing.T, test func(t *testing.T, s *shop)) {
	t.Helper()
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newShop(t, engine, ""))
		})
	}
}

// countingBothWays does so also with what clientFoundRows makes of the number
// of affected rows on the business's connections (J8).
func countingBothWays(t *testing.T, test func(t *testing.T, s *shop)) {
	t.Helper()
	onBothEngines(t, test)
	for _, engine := range stack.Engines() {
		t.Run(engine.String()+"/clientFoundRows", func(t *testing.T) {
			t.Parallel()
			test(t, newShop(t, engine, "clientFoundRows=true"))
		})
	}
}

func newShop(t *testing.T, engine stack.Engine, dialect string) *shop {
	t.Helper()
	s := &shop{Tiers: tiers.New(t, engine)}
	s.Exec(t, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)")
	s.Exec(t, "INSERT INTO stock VALUES (1, 10)")
	s.proxy = stack.StartProxy(t, s.Database.Server())
	s.business = tiers.WithParameters(s.user(t, "b", "SELECT, UPDATE ON %s.lease", "SELECT, INSERT, UPDATE, DELETE ON %s.stock"), dialect)
	s.db = s.pool(t, s.business)
	s.node = s.Node(t)
	s.locker = open(t, s.node)
	s.peer = open(t, s.Node(t))
	return s
}

// guardTables makes the tables of a guard, and gives the business's user the
// rights that the documentation asks for.
func (s *shop) guardTables(t *testing.T) {
	t.Helper()
	if err := idempotency.EnsureSchema(t.Context(), s.Admin); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"idempotency", "idempotency_fence"} {
		s.Exec(t, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO %sb@'%%'", s.Database.Name, table, s.Database.Name))
	}
}

func open(t *testing.T, n tiers.Node, options ...tier.Option) *tier.Locker {
	t.Helper()
	l, err := tier.New(n.Filter, n.Authority, append([]tier.Option{
		tier.WithNamespace(namespace), tier.WithTTL(ttl), tier.WithWait(10 * time.Second),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// user makes a user with these rights and returns its DSN through the proxy.
func (s *shop) user(t *testing.T, suffix string, grants ...string) string {
	t.Helper()
	name := s.Database.Name + suffix
	s.Exec(t, fmt.Sprintf("CREATE USER %s@'%%' IDENTIFIED BY 'business'", name))
	t.Cleanup(func() { s.Exec(t, fmt.Sprintf("DROP USER %s@'%%'", name)) })
	for _, grant := range grants {
		s.Exec(t, fmt.Sprintf("GRANT "+grant+" TO %s@'%%'", s.Database.Name, name))
	}
	cfg, err := mysql.ParseDSN(s.Database.DSNAt(s.proxy.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd = name, "business"
	cfg.Logger = &mysql.NopLogger{}
	return cfg.FormatDSN()
}

func (s *shop) pool(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (s *shop) acquire(t *testing.T, l *tier.Locker) *tier.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// sell begins a transaction that has taken one out of the stock, and is not
// confirmed. Whatever comes of it, it is over with the test.
func (s *shop) sell(t *testing.T) *sql.Tx {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.ExecContext(t.Context(), "UPDATE stock SET n = n - 1 WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	return tx
}

// noneOpen checks that no connection of the business's pool is inside a
// transaction, where the server would refuse the statement. What it says itself about
// transactions it cannot say while others' statements are not UTF-8 (MySQL 9.7).
func (s *shop) noneOpen(t *testing.T) {
	t.Helper()
	var all []*sql.Conn
	defer func() {
		for _, conn := range all {
			_ = conn.Close()
		}
	}()
	for range s.db.Stats().OpenConnections {
		conn, err := s.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
		if _, err := conn.ExecContext(t.Context(), "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			t.Errorf("a connection: %v", err)
		}
	}
	if len(all) == 0 {
		t.Error("no connection is open: nothing was tested")
	}
}

// stock checks what is left.
func (s *shop) stock(t *testing.T, want int) {
	t.Helper()
	if n := s.Count(t, "SELECT n FROM stock WHERE id = 1"); n != want {
		t.Errorf("stock %d, want %d", n, want)
	}
}

func confirm(t *testing.T, tx idempotency.Tx, lease *tier.Lease) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return idempotency.ConfirmTx(ctx, tx, lease)
}
