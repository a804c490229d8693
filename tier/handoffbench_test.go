// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// BenchmarkHandOff has 64 callers of one process want one key.
func BenchmarkHandOff(b *testing.B) {
	l, err := tier.New(tiertest.NewFilter(), tiertest.NewAuthority(), tier.WithWait(time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(b.Context()) })
	b.ReportAllocs()
	var workers sync.WaitGroup
	b.ResetTimer()
	for range 64 {
		workers.Go(func() {
			for range b.N / 64 {
				lease, err := l.Acquire(b.Context(), "k")
				if err == nil {
					err = lease.Release(b.Context())
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
}
