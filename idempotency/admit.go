// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// Claim is for a business database that is not the lock's, where no statement can
// look at the lease row: it raises the highest fence that the business database
// has seen of the key to that of the lease, in a transaction of its own. A new
// tenure does so before its first read. From then on [Guard.Admit] refuses every
// earlier tenure; a write of one that was admitted before and is not committed
// yet is waited for, so that what is read afterwards holds it. [Guard.Once] of a
// guard with [WithHighWater] does both itself.
//
// Without Claim the fence holds only from the tenure's own first write on: a
// holder that woke up too late is admitted while its successor has not written.
//
// Errors: [ErrStaleFence] when a later tenure was here before, [ErrUnfenced],
// [ErrWrongKey], [ErrRetryTx], [ErrStoreDown], [ErrSchema], the context's.
func (g *Guard) Claim(ctx context.Context, lease *tier.Lease) error {
	if lease == nil {
		return fmt.Errorf("%w: claim: lease is nil", ErrOption)
	}
	tx, err := g.begin(ctx)
	if err != nil {
		return fmt.Errorf("claim %q: %w", lease.Key(), err)
	}
	defer rollback(ctx, tx)
	if err := g.admit(ctx, tx, lease, "claim"); err != nil {
		return err
	}
	// A commit of unknown outcome that was none is no harm: Admit raises, too, and
	// the caller does not go on.
	if _, err := tx.ExecContext(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("claim %q: %w", lease.Key(), classify(ctx, err, ErrSchema))
	}
	return nil
}

// Admit proves, inside tx, that no later tenure of the lease's key has claimed or
// written in tx's database, and keeps later ones waiting until tx ends. It may be
// called at any point of tx; with several leases, in the order of their keys. It
// is for a business database that is not the lock's, and needs [Guard.Claim];
// [ConfirmTx] is stronger where it is possible.
//
// Errors: those of Claim, [ErrNilTx], [ErrNoTx], [ErrTxDone]. After any of them tx
// must not be committed; after [ErrRetryTx] it was rolled back.
func (g *Guard) Admit(ctx context.Context, tx Tx, lease *tier.Lease) error {
	if err := usable(tx); err != nil {
		return fmt.Errorf("admit: %w", err)
	}
	if lease == nil {
		return fmt.Errorf("%w: admit: lease is nil", ErrOption)
	}
	if err := inTransaction(ctx, tx, "admit", lease.Key()); err != nil {
		return err
	}
	return g.admit(ctx, tx, lease, "admit")
}

func (g *Guard) admit(ctx context.Context, tx Tx, lease *tier.Lease, op string) error {
	if lease.Fence() == 0 {
		return unfenced(lease)
	}
	if err := g.checkNamespace(lease); err != nil {
		return err
	}
	proved, err := lease.Prove()
	if err != nil {
		return stale(err)
	}
	return g.raise(ctx, tx, proved, op)
}

// raise lifts the key's highest fence, and is refused when it is higher. What it
// reads is what its own statement has locked.
func (g *Guard) raise(ctx context.Context, tx Tx, proved driver.Tenure, op string) error {
	_, err := tx.ExecContext(ctx, g.tables.raise(), []byte(proved.Key), proved.Fence)
	var highest uint64
	if err == nil {
		err = tx.QueryRowContext(ctx, g.tables.highest(), []byte(proved.Key)).Scan(&highest)
	}
	if err != nil {
		rollback(ctx, tx)
		return fmt.Errorf("%s %q: %w", op, proved.Key, classify(ctx, err, ErrSchema))
	}
	if highest != proved.Fence {
		return fmt.Errorf("%w: %q, fence %d: fence %d was here before; roll back", ErrStaleFence, proved.Key, proved.Fence, highest)
	}
	return nil
}

// begin begins a transaction that holds no gaps locked: what it locks are rows.
//
// ctx bounds the beginning only. Were it the transaction's own, its end would roll
// back and give the connection away while we still have something to say on it.
func (g *Guard) begin(ctx context.Context) (*sql.Tx, error) {
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	defer stop()
	tx, err := g.db.BeginTx(own, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, notBegun(ctx, err)
	}
	return tx, nil
}
