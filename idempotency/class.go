// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// classify says what an error of a statement inside a transaction means for all
// of it. table is the sentinel for a table that is missing or not ours to write.
func classify(ctx context.Context, err, table error) error {
	server, answered := errors.AsType[*mysql.MySQLError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Join(context.Cause(ctx), err)
	case errors.Is(err, mysql.ErrPktTooLarge), isAnswer(err, 1153):
		return fmt.Errorf("%w: it is more than the server's or the driver's max_allowed_packet; raise that, or see WithMaxResult: %w", ErrResultTooLarge, err)
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", ErrTxDone, err)
	case !answered: // the connection is gone, and the transaction with it
		return fmt.Errorf("%w: %w", ErrRetryTx, err)
	case server.SQLState == rollbackState:
		return fmt.Errorf("%w: %w", ErrRetryTx, err)
	}
	switch server.Number {
	case 1213, 1205, 1020, 3572, 3101: // deadlock, lock wait, snapshot conflict, NOWAIT, failed certification
		return fmt.Errorf("%w: %w", ErrRetryTx, err)
	case 1146, 1049, 1142, 1143, 1054: // no table, no database, no right, no column
		return fmt.Errorf("%w: %w", table, err)
	case 1290, 1792, 1836, 1053, 1927, 1317: // read-only, shutting down, killed
		return fmt.Errorf("%w: %w", ErrStoreDown, err)
	}
	return err
}

// rollbackState is the SQLSTATE of every "transaction rolled back, try again".
var rollbackState = [5]byte{'4', '0', '0', '0', '1'}

// rolledBackByServer reports that an error of a write means that the transaction
// is gone, or that half of a statement is: nothing of it may be committed.
func rolledBackByServer(err error) bool {
	if errors.Is(err, ErrRetryTx) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, sqldriver.ErrBadConn) {
		return true
	}
	return errors.Is(classify(context.Background(), serverError(err), ErrSchema), ErrRetryTx)
}

// serverError is the server's answer in err, or nil.
func serverError(err error) error {
	if server, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return server
	}
	return nil
}

// notBegun is classify for what fails before there is anything to lose.
func notBegun(ctx context.Context, err error) error {
	err = classify(ctx, err, ErrSchema)
	if errors.Is(err, ErrRetryTx) {
		return fmt.Errorf("%w: %w", ErrStoreDown, err)
	}
	return err
}
