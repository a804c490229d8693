// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
)

// What a lease costs this tier: a mark and its clearing, with a message.
func BenchmarkFilter_MarkClear(b *testing.B) {
	f, err := redisfast.Open(stack.SharedRedis(b).URL(), redisfast.WithPrefix("bench:"), redisfast.WithTimeout(time.Second))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close(b.Context()) }()
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key, m := strconv.FormatInt(n.Add(1), 10), newMark()
		for pb.Next() {
			if st, err := f.Mark(b.Context(), key, m); err != nil || !st.Ours {
				b.Errorf("%+v, %v", st, err)
			}
			if err := f.Clear(b.Context(), key, m.Token, true); err != nil {
				b.Error(err)
			}
		}
	})
}
