// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
)

// TestOnce_autocommitOff has a pool whose sessions do not commit by themselves: no
// look leaves a transaction open on one.
func TestOnce_autocommitOff(t *testing.T) {
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, engine, "autocommit=0")
			s.db.SetMaxOpenConns(1)
			g := s.guard(t)
			failure := errors.New("not now")
			failing := idempotency.Step{Name: "a", Call: func(context.Context, idempotency.Call) ([]byte, error) { return nil, failure }}
			last := idempotency.Step{Name: "b", Call: func(context.Context, idempotency.Call) ([]byte, error) { return []byte("b"), nil }}
			ended := failing
			ended.Call = last.Call
			for i := range 2 {
				if result, err := g.Once(t.Context(), nil, buy("one"), sale); err != nil || result.Replayed != (i == 1) {
					t.Fatalf("once: replayed %v, %v", result.Replayed, err)
				}
			}
			if _, err := g.Reserve(t.Context(), nil, buy("two"), failing, last); !errors.Is(err, failure) {
				t.Fatalf("reserve: %v", err)
			}
			if _, err := g.Reserve(t.Context(), nil, buy("two"), ended, last); err != nil {
				t.Fatalf("reserve again: %v", err)
			}
			s.noneOpen(t)
		})
	}
}

// TestOnce_contextEndsBetweenStatements ends the caller's context while no statement
// is under way: it is the context's error, nothing is written, and the session is as
// before.
func TestOnce_contextEndsBetweenStatements(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		s.db.SetMaxOpenConns(1)
		g := s.guard(t)
		var session, limit int
		look := "SELECT CONNECTION_ID(), @@innodb_lock_wait_timeout"
		if err := s.db.QueryRowContext(t.Context(), look).Scan(&session, &limit); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := g.Once(ctx, nil, buy("one"), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			body, err := sale(ctx, tx)
			cancel()
			time.Sleep(50 * time.Millisecond) // for whoever watches it
			return body, err
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, idempotency.ErrTxDone) {
			t.Errorf("once: %v", err)
		}
		s.stock(t, 10)
		var again, limitThen int
		if err := s.db.QueryRowContext(t.Context(), look).Scan(&again, &limitThen); err != nil {
			t.Fatal(err)
		}
		if again == session && limitThen != limit {
			t.Errorf("the session waits %d s for locks, %d before", limitThen, limit)
		}
		if _, err := g.Once(t.Context(), nil, buy("one"), sale); err != nil {
			t.Errorf("again: %v", err)
		}
		s.stock(t, 9)
	})
}
