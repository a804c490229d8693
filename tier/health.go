// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"sync/atomic"

	"go.uber.org/zap"
)

// health says once, not once a call, that the filter fell out or came back.
type health struct {
	log *zap.Logger
	out atomic.Bool
}

func (h *health) failed(err error) {
	if h.out.CompareAndSwap(false, true) {
		h.log.Warn("redis filter is out; leases are granted by the authority alone", zap.Error(err))
	}
}

func (h *health) answered() {
	if h.out.Load() && h.out.CompareAndSwap(true, false) {
		h.log.Info("redis filter is back")
	}
}
