// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"time"
)

// noLock is the control without any lock: everybody is always let in.
type noLock struct{}

func (noLock) acquire(ctx context.Context, _ string) (turn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return freeTurn{context.WithoutCancel(ctx)}, nil
}

func (l noLock) acquireAll(ctx context.Context, keys []string) ([]turn, error) {
	return oneByOne(ctx, l, keys)
}

func (noLock) rung() string { return "" }

func (noLock) close(context.Context) error { return nil }

type freeTurn struct{ ctx context.Context }

func (t freeTurn) context() context.Context             { return t.ctx }
func (freeTurn) deadline() (time.Time, bool)            { return time.Time{}, false }
func (freeTurn) level() level                           { return "" }
func (freeTurn) confirm(context.Context, *sql.Tx) error { return nil }
func (freeTurn) release(context.Context) error          { return nil }
