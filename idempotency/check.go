// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"fmt"
)

// packetMargin is what a statement needs beside the answer it carries.
const packetMargin = 64 << 10

// Check asks at start-up whether the guard can work: whether its tables are there
// and its user may write them, and whether the server takes an answer of the size
// that is allowed. It returns within ctx, or within ten seconds where ctx has no
// end. Whether the lease table is on the same server is only seen by a write.
//
// Errors: [ErrSchema], [ErrStoreDown], [ErrOption] for [WithMaxResult], the context's.
func (g *Guard) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	var packet int
	if err := g.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet").Scan(&packet); err != nil {
		return fmt.Errorf("check: %w", notBegun(ctx, err))
	}
	if most := packet - packetMargin; g.options.maxResult > most {
		return fmt.Errorf("%w: max result %d: the server's max_allowed_packet, %d, leaves room for %d; raise it, or set WithMaxResult",
			ErrOption, g.options.maxResult, packet, max(0, most))
	}
	tx, err := g.begin(ctx)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	defer rollback(ctx, tx)
	for _, statement := range g.tables.rights() {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("check: %w; run EnsureSchema, and grant SELECT, INSERT, UPDATE and DELETE on the tables", classify(ctx, err, ErrSchema))
		}
	}
	return nil
}

// rights are statements that need every right and touch no row. They name a key for
// sessions with sql_safe_updates.
func (t tables) rights() []string {
	return []string{
		"INSERT INTO " + t.requests + " SELECT * FROM " + t.requests + " WHERE FALSE",
		"UPDATE " + t.requests + " SET attempt = NULL, seed = seed, result = NULL WHERE namespace = '' AND FALSE",
		"DELETE FROM " + t.requests + " WHERE namespace = '' AND FALSE",
		"INSERT INTO " + t.highWater + " SELECT * FROM " + t.highWater + " WHERE FALSE",
		"UPDATE " + t.highWater + " SET fence = fence WHERE lock_key = '' AND FALSE",
	}
}
