// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

const (
	// accounts are few enough that transfers meet, and enough that a stopped holder
	// does not close the bank.
	accounts = 24
	// deposit is what each begins with, in cents: more than a run can take out.
	deposit = 100_000_000
)

// bank is the other half of the business: accounts, and a ledger of what was moved.
// The ledger takes a request as often as it is given one, so that a double charge
// shows.
type bank struct {
	db    *sql.DB
	guard *idempotency.Guard // nil: writes are what they are
}

var bankTables = []string{
	`DROP TABLE IF EXISTS tierlock_demo_account, tierlock_demo_ledger`,
	`CREATE TABLE tierlock_demo_account (id INT PRIMARY KEY, cents BIGINT NOT NULL) ENGINE=InnoDB`,
	`CREATE TABLE tierlock_demo_ledger (id BIGINT AUTO_INCREMENT PRIMARY KEY, request VARCHAR(64) NOT NULL,
		payer INT NOT NULL, payee INT NOT NULL, cents BIGINT NOT NULL, KEY (request)) ENGINE=InnoDB`,
}

// build makes the tables, with a deposit on every account.
func (b *bank) build(ctx context.Context) error {
	for _, statement := range bankTables {
		if _, err := b.db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("build the bank: %w", err)
		}
	}
	for id := range accounts {
		if _, err := b.db.ExecContext(ctx, `INSERT INTO tierlock_demo_account VALUES (?, ?)`, id, deposit); err != nil {
			return fmt.Errorf("fill the bank: %w", err)
		}
	}
	return nil
}

// payment is what a client asks for, under an id of the client's own.
type payment struct {
	ID    string `json:"-"`
	From  int    `json:"from"`
	To    int    `json:"to"`
	Cents int64  `json:"cents"`
}

// paymentOf is the n-th request of a client: the same wherever it is asked for, so
// that any worker of any node can repeat it.
func paymentOf(seed int64, client, n int) payment {
	rng := rand.New(rand.NewPCG(uint64(seed), uint64(client)<<32|uint64(n)))
	from := rng.IntN(accounts)
	return payment{
		ID: fmt.Sprintf("client-%d/%d", client, n), From: from,
		To: (from + 1 + rng.IntN(accounts-1)) % accounts, Cents: 1 + rng.Int64N(500),
	}
}

func accountKey(id int) string { return fmt.Sprintf("payment/acct-%d", id) }

func (p payment) keys() []string { return []string{accountKey(p.From), accountKey(p.To)} }

// receipt is the answer to a payment.
type receipt struct {
	From int64 `json:"from_cents"` // what is left
	To   int64 `json:"to_cents"`
}

// pay does a payment under the turns that are held, once if there is a guard.
func (b *bank) pay(
	ctx context.Context, held []turn, p payment, move func(context.Context, *sql.Tx, payment) ([]byte, error),
) (answer []byte, replayed bool, err error) {
	if b.guard == nil {
		answer, err = b.plain(ctx, p, move)
		return answer, false, err
	}
	fingerprint, err := idempotency.Fingerprint("pay", p)
	if err != nil {
		return nil, false, err
	}
	request := idempotency.Request{Scope: "demo", Key: p.ID, Fingerprint: fingerprint, Leases: leases(held)}
	result, err := b.guard.Once(ctx, nil, request, func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
		return move(ctx, tx, p)
	})
	switch {
	case errors.Is(err, idempotency.ErrStaleFence):
		err = fmt.Errorf("%w: %w", errStale, err)
	case errors.Is(err, idempotency.ErrUnfenced):
		err = fmt.Errorf("%w: %w", errUnfenced, err)
	}
	return result.Body, result.Replayed, err
}

func leases(held []turn) []*tier.Lease {
	var all []*tier.Lease
	for _, t := range held {
		if l, ok := t.(leaseTurn); ok {
			all = append(all, l.lease)
		}
	}
	return all
}

// plain is a transaction as most code has it.
func (b *bank) plain(ctx context.Context, p payment, move func(context.Context, *sql.Tx, payment) ([]byte, error)) ([]byte, error) {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	answer, err := move(ctx, tx, p)
	if err != nil {
		return nil, err
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return answer, nil
}

// balances reads both accounts.
func balances(ctx context.Context, tx *sql.Tx, p payment) (r receipt, err error) {
	for id, cents := range map[int]*int64{p.From: &r.From, p.To: &r.To} {
		if err := tx.QueryRowContext(ctx, `SELECT cents FROM tierlock_demo_account WHERE id = ?`, id).Scan(cents); err != nil {
			return r, fmt.Errorf("read an account: %w", err)
		}
	}
	return r, nil
}

// book writes what was computed, whole, as code that maps rows to objects does: a
// lost update shows in the money.
func book(ctx context.Context, tx *sql.Tx, p payment, r receipt) ([]byte, error) {
	for _, row := range []struct {
		id    int
		cents int64
	}{{p.From, r.From}, {p.To, r.To}} {
		if _, err := tx.ExecContext(ctx, `UPDATE tierlock_demo_account SET cents = ? WHERE id = ?`, row.cents, row.id); err != nil {
			return nil, fmt.Errorf("write an account: %w", err)
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO tierlock_demo_ledger (request, payer, payee, cents) VALUES (?, ?, ?, ?)`, p.ID, p.From, p.To, p.Cents)
	if err != nil {
		return nil, fmt.Errorf("write the ledger: %w", err)
	}
	return json.Marshal(r)
}

// accountsBooks are what the bank's tables say at the end.
type accountsBooks struct {
	payments int64
	double   int64 // requests with more than one row in the ledger
	money    int64 // balances minus deposits
	astray   int64 // accounts that are not what the ledger makes of them
}

func (b *bank) audit(ctx context.Context) (a accountsBooks, err error) {
	for query, into := range map[string]*int64{
		`SELECT COUNT(*) FROM tierlock_demo_ledger`:                                                              &a.payments,
		`SELECT COUNT(*) FROM (SELECT request FROM tierlock_demo_ledger GROUP BY request HAVING COUNT(*) > 1) d`: &a.double,
		fmt.Sprintf(`SELECT COALESCE(SUM(cents - %d), 0) FROM tierlock_demo_account`, deposit):                   &a.money,
		fmt.Sprintf(`SELECT COUNT(*) FROM tierlock_demo_account a
			LEFT JOIN (SELECT id, SUM(cents) AS cents FROM (
				SELECT payee AS id, cents FROM tierlock_demo_ledger UNION ALL SELECT payer, -cents FROM tierlock_demo_ledger) m GROUP BY id) l ON l.id = a.id
			WHERE a.cents <> %d + COALESCE(l.cents, 0)`, deposit): &a.astray,
	} {
		if err := b.db.QueryRowContext(ctx, query).Scan(into); err != nil {
			return a, fmt.Errorf("read the bank's books: %w", err)
		}
	}
	return a, nil
}
