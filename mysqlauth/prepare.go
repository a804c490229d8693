// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"slices"

	"github.com/tierlock/tierlock/tier/driver"
)

// Prepare makes the rows of keys ahead, free, which saves their first claims a
// statement. Rows that exist are left alone; rows that are not used for the
// retention are swept like others.
func (a *Authority) Prepare(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return classify("prepare", err)
		}
	}
	distinct := slices.Compact(sortedKeys(slices.Clone(keys)))
	return a.detached(ctx, "prepare", func(ctx context.Context) error {
		s, err := a.sessions.borrow(ctx, "prepare", a.timeout)
		if err != nil {
			return err
		}
		defer a.sessions.giveBackBorrowed(s)
		for batch := range slices.Chunk(distinct, maxBatch) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := a.prepareBatch(s, batch); err != nil {
				return err
			}
		}
		return nil
	})
}

// prepareBatch inserts what a read finds missing, as claims do: other
// processes may make the same rows.
func (a *Authority) prepareBatch(s *session, keys []string) error {
	for range rounds {
		r, err := s.read(a.timeout, keys)
		if err != nil {
			return unreachable("prepare", err)
		}
		missing := slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
			_, exists := r.rows[key]
			return exists
		})
		if len(missing) == 0 {
			return nil
		}
		var made int64
		err = s.again(&a.retried, func() error {
			// No token, no block, no holder, no time: a free row.
			args := append([]any{nil, 0, []byte{}, 0}, a.tables.keyArgs(missing)...)
			args = append(args, s.clock.now()+a.timeout.Microseconds(), uint64(maxFence))
			made, err = s.exec(a.timeout, a.tables.insert(len(missing)), args...)
			return err
		})
		switch {
		case duplicate(err):
			continue
		case err != nil:
			return unknownUnlessProved("prepare", err)
		case made == int64(len(missing)):
			return nil
		}
		if err := a.explain(s, 0); err != nil && driver.ClassOf(err) == driver.ClassConfig {
			return err
		}
	}
	return &driver.Error{Tier: "mysql", Op: "prepare", Class: driver.ClassTransient, Err: errRaced}
}
