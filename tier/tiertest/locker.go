// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"time"

	"github.com/tierlock/tierlock/tier"
)

// TB is the part of testing.TB that this package needs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// NewLocker returns a working locker on in-memory drivers of its own. It is
// closed when the test ends; what the test forgot to release fails it.
func NewLocker(tb TB, options ...tier.Option) *tier.Locker {
	tb.Helper()
	locker, err := tier.New(NewFilter(), NewAuthority(), options...)
	if err != nil {
		tb.Fatalf("tiertest: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			tb.Fatalf("tiertest: %v", err)
		}
	})
	return locker
}
