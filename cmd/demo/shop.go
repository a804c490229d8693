// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// products are few enough that every one always has several workers who
	// want it, and enough that a stopped holder does not close the shop.
	products = 8
	// delivery is how much a restock puts in: about a second's sales.
	delivery = 100
)

// shop is the business: its own tables and its own pool, in the database server
// that also has the lease table.
type shop struct{ db *sql.DB }

// shelf is a product as a worker reads it and, like most code that maps rows to
// objects, saves it: whole. That makes every lost update show as an order that
// the stock does not account for, whatever came between.
type shelf struct {
	product int
	stock   int
	putIn   int
}

var shopTables = []string{
	`DROP TABLE IF EXISTS tierlock_demo_order, tierlock_demo_product`,
	`CREATE TABLE tierlock_demo_product (id INT PRIMARY KEY, stock BIGINT NOT NULL, put_in BIGINT NOT NULL) ENGINE=InnoDB`,
	`CREATE TABLE tierlock_demo_order (id BIGINT AUTO_INCREMENT PRIMARY KEY, product INT NOT NULL) ENGINE=InnoDB`,
}

func openShop(ctx context.Context, dsn string, conns int) (*shop, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("the MySQL DSN cannot be parsed") // its text may hold a password
	}
	cfg.InterpolateParams = true // one round trip a statement
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("the MySQL DSN: %w", err)
	}
	s := &shop{db: sql.OpenDB(connector)}
	s.db.SetMaxOpenConns(conns)
	s.db.SetMaxIdleConns(conns)
	if err := s.db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the shop's database: %w", err), s.close())
	}
	return s, nil
}

func (s *shop) close() error { return s.db.Close() }

// build makes the tables, with a delivery of every product on the shelves.
func (s *shop) build(ctx context.Context) error {
	for _, statement := range shopTables {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("build the shop: %w", err)
		}
	}
	for p := range products {
		_, err := s.db.ExecContext(ctx, `INSERT INTO tierlock_demo_product VALUES (?, ?, ?)`, p, delivery, delivery)
		if err != nil {
			return fmt.Errorf("fill the shop: %w", err)
		}
	}
	return nil
}

func (s *shop) read(ctx context.Context, product int) (shelf, error) {
	f := shelf{product: product}
	err := s.db.QueryRowContext(ctx, `SELECT stock, put_in FROM tierlock_demo_product WHERE id = ?`, product).
		Scan(&f.stock, &f.putIn)
	if err != nil {
		return shelf{}, fmt.Errorf("read the stock: %w", err)
	}
	return f, nil
}

// save writes the shelf, and an order with it if sold, in one transaction that
// confirm ends. The instant is the one before COMMIT was sent.
func (s *shop) save(
	ctx context.Context, f shelf, sold bool, confirm func(context.Context, *sql.Tx) error,
) (at instant, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // nothing of a failed sale remains; after a failed COMMIT it does nothing
		}
	}()
	_, err = tx.ExecContext(ctx, `UPDATE tierlock_demo_product SET stock = ?, put_in = ? WHERE id = ?`, f.stock, f.putIn, f.product)
	if err != nil {
		return 0, fmt.Errorf("write the stock: %w", err)
	}
	if sold {
		if _, err = tx.ExecContext(ctx, `INSERT INTO tierlock_demo_order (product) VALUES (?)`, f.product); err != nil {
			return 0, fmt.Errorf("write the order: %w", err)
		}
	}
	if err = confirm(ctx, tx); err != nil {
		return 0, fmt.Errorf("confirm: %w", err)
	}
	at = now()
	if err = tx.Commit(); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	return at, nil
}

// books are what the database says at the end.
type books struct {
	orders   int64
	stock    int64
	oversold int64
}

func (s *shop) audit(ctx context.Context) (books, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT p.stock, p.put_in, COALESCE(o.n, 0)
		FROM tierlock_demo_product p
		LEFT JOIN (SELECT product, COUNT(*) AS n FROM tierlock_demo_order GROUP BY product) o ON o.product = p.id`)
	if err != nil {
		return books{}, fmt.Errorf("read the books: %w", err)
	}
	defer rows.Close()
	var b books
	for rows.Next() {
		var stock, putIn, orders int64
		if err := rows.Scan(&stock, &putIn, &orders); err != nil {
			return books{}, fmt.Errorf("read the books: %w", err)
		}
		b.add(stock, putIn, orders)
	}
	if err := rows.Err(); err != nil {
		return books{}, fmt.Errorf("read the books: %w", err)
	}
	return b, nil
}

func (b *books) add(stock, putIn, orders int64) {
	b.stock += stock
	b.orders += orders
	b.oversold += max(0, orders-(putIn-stock))
}

// glance is the stock for the live line, or -1 while the database is silent.
func (s *shop) glance(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	var stock int64
	if err := s.db.QueryRowContext(ctx, `SELECT SUM(stock) FROM tierlock_demo_product`).Scan(&stock); err != nil {
		return -1
	}
	return stock
}
