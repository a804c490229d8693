// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// A payment under the lock of its account: whatever dies on the way, and however
// often the client asks, the account is charged once and the answer is the same.
func ExampleGuard_Once() {
	type payment struct {
		Account string `json:"account"`
		Cents   int64  `json:"cents"`
	}
	pay := func(ctx context.Context, locker *tier.Locker, guard *idempotency.Guard, key string, p payment) ([]byte, error) {
		fingerprint, err := idempotency.Fingerprint("pay", p)
		if err != nil {
			return nil, err
		}
		var answer []byte
		err = locker.Do(ctx, "account/"+p.Account, func(ctx context.Context, lease *tier.Lease) error {
			result, err := guard.Once(ctx, lease, idempotency.Request{Key: key, Fingerprint: fingerprint, LockKey: "account/" + p.Account},
				func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
					var cents int64
					if err := tx.QueryRowContext(ctx, "SELECT cents FROM account WHERE id = ?", p.Account).Scan(&cents); err != nil {
						return nil, err
					}
					if cents < p.Cents { // the answer, now and for every repetition
						return nil, idempotency.Final([]byte(`{"error":"no funds"}`), nil)
					}
					if _, err := tx.ExecContext(ctx, "UPDATE account SET cents = ? WHERE id = ?", cents-p.Cents, p.Account); err != nil {
						return nil, err
					}
					return json.Marshal(map[string]int64{"left": cents - p.Cents})
				})
			answer = result.Body
			return err
		})
		if answer != nil && !errors.Is(err, idempotency.ErrFinal) {
			return answer, nil // committed; a lease that was lost afterwards is only news
		}
		return answer, err
	}
	_ = pay
}

// A consumer of a queue that delivers at least once. The message's own id is the
// key, so that a redelivery, to whichever consumer, is answered by what the first
// delivery has done. No lock is needed for that.
func ExampleGuard_Once_consumer() {
	type message struct {
		ID      string
		Product int
	}
	type delivery interface {
		Ack() error
		Nack(after time.Duration) error
	}
	consume := func(ctx context.Context, guard *idempotency.Guard, m message, d delivery) error {
		fingerprint, err := idempotency.Fingerprint("reserve stock", m)
		if err != nil {
			return err // for the dead letters: it will never be right
		}
		_, err = guard.Once(ctx, nil, idempotency.Request{Scope: "stock-consumer", Key: m.ID, Fingerprint: fingerprint},
			func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
				_, err := tx.ExecContext(ctx, "UPDATE product SET reserved = reserved + 1 WHERE id = ?", m.Product)
				return nil, err
			})
		switch {
		case err == nil, errors.Is(err, idempotency.ErrFinal):
			return d.Ack()
		default: // under way elsewhere, or not known: the next delivery finds out
			return d.Nack(max(time.Second, idempotency.RetryAfter(err)))
		}
	}
	_ = consume
}

// An outbox: the write, the record that it was done, and the event that tells of it
// are one COMMIT. What publishes the outbox may do so twice; its readers are consumers
// as above, with the event's id as their key.
func ExampleGuard_Once_outbox() {
	order := func(ctx context.Context, guard *idempotency.Guard, lease *tier.Lease, key string, product int) (idempotency.Result, error) {
		fingerprint, err := idempotency.Fingerprint("order", product)
		if err != nil {
			return idempotency.Result{}, err
		}
		return guard.Once(ctx, lease, idempotency.Request{Key: key, Fingerprint: fingerprint}, func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			if _, err := tx.ExecContext(ctx, "UPDATE product SET stock = stock - 1 WHERE id = ?", product); err != nil {
				return nil, err
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO outbox (event_id, topic, payload) VALUES (?, 'order.placed', ?)", key, product); err != nil {
				return nil, err
			}
			return []byte("placed"), nil
		})
	}
	_ = order
}
