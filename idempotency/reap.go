// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.uber.org/zap"
)

// reapBatch is how many rows one transaction removes.
const reapBatch = 500

// reapRegularly runs until Close. That many processes do it at once is no harm:
// each takes rows that no other has locked.
func (g *Guard) reapRegularly() {
	for {
		if sleep(g.life, g.options.reapEvery/2+rand.N(g.options.reapEvery)) != nil {
			return
		}
		if n, err := g.Reap(g.life); g.life.Err() == nil && err != nil {
			g.options.logger.Warn("answers past their retention were not removed", zap.Int("removed", n), zap.Error(err))
		}
	}
}

// Reap removes the answers whose retention has passed, and returns how many; with
// [WithForbidReuse] it keeps that there was one. Requests under way are left alone.
// It is done regularly, see [WithReapInterval]. It never waits for a row, and holds
// few at a time.
func (g *Guard) Reap(ctx context.Context) (removed int, err error) {
	for {
		n, err := g.reapSome(ctx)
		removed += n
		if err != nil || n < reapBatch {
			return removed, err
		}
	}
}

func (g *Guard) reapSome(ctx context.Context) (int, error) {
	tx, err := g.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("reap: %w", err)
	}
	defer rollback(ctx, tx)
	keys, n, err := g.expired(ctx, tx)
	if err != nil || n == 0 {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, g.tables.remove(n, g.options.forbidReuse), keys...); err != nil {
		return 0, fmt.Errorf("reap: %w", classify(ctx, err, ErrSchema))
	}
	limited, cancel := context.WithTimeout(ctx, commitLimit)
	defer cancel()
	if _, err := tx.ExecContext(limited, "COMMIT"); err != nil {
		return 0, fmt.Errorf("reap: %w", classify(ctx, err, ErrSchema))
	}
	return n, nil
}

// expired locks rows and returns their keys.
func (g *Guard) expired(ctx context.Context, tx Tx) (keys []any, n int, err error) {
	rows, err := tx.QueryContext(ctx, g.tables.expired(), reapBatch)
	if err != nil {
		return nil, 0, fmt.Errorf("reap: %w", classify(ctx, err, ErrSchema))
	}
	defer rows.Close()
	for rows.Next() {
		var namespace, scope, key []byte
		if err := rows.Scan(&namespace, &scope, &key); err != nil {
			return nil, 0, fmt.Errorf("reap: %w", err)
		}
		keys = append(keys, namespace, scope, key)
		n++
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("reap: %w", classify(ctx, err, ErrSchema))
	}
	return keys, n, nil
}

// expired finds rows past their retention that nobody works on or has locked.
//
// Args: how many.
func (t tables) expired() string {
	return "SELECT namespace, scope, request_key FROM " + t.requests +
		fmt.Sprintf(" WHERE expires_at <= UTC_TIMESTAMP(6) AND state <> %d", stateSpent) +
		" AND (in_progress_until IS NULL OR in_progress_until <= UTC_TIMESTAMP(6)) ORDER BY expires_at LIMIT ? FOR UPDATE SKIP LOCKED"
}

// remove deletes rows, or keeps of them that they were there.
//
// Args: n keys.
func (t tables) remove(n int, keep bool) string {
	// Not a list of triples, for which MariaDB scans the table.
	which := strings.Replace(strings.Repeat(" OR namespace = ? AND scope = ? AND request_key = ?", n), " OR", " WHERE", 1)
	if keep {
		return "UPDATE " + t.requests + fmt.Sprintf(" SET state = %d, attempt = NULL, result = NULL, expires_at = '9999-12-31'", stateSpent) + which
	}
	return "DELETE FROM " + t.requests + which
}

// checkLimit bounds Check where ctx has no end.
const checkLimit = 10 * time.Second
