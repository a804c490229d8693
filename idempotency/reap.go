// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
)

func (g *Guard) reapRegularly() {
	<-g.life.Done()
}

// Check asks whether the guard can work.
func (g *Guard) Check(ctx context.Context) error { return nil }

var _ = context.Background
