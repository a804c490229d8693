// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// ForceClear deletes whatever plain mark stands for a key and wakes those who
// wait for it: the second half of an operator's force-release, after the
// authority has let go. A flagged mark stays, since it is all that keeps others
// away from its holder; stands reports that.
func (f *Filter) ForceClear(ctx context.Context, key string) (stands bool, err error) {
	ours := driver.Mark{Token: driver.NewToken(), TTL: time.Second}
	state, err := f.Overwrite(ctx, key, ours)
	if err != nil {
		return false, err
	}
	return !state.Ours, f.Clear(ctx, key, ours.Token, true)
}
