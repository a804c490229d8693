// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
	b.SetParallelism(128)
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

// The same pair by the client's own pipelines, which are an experiment of theirs.
// It measures what ours have to be as good as; see docs/decisions.md.
func BenchmarkAutoPipeline_MarkClear(b *testing.B) {
	client, err := redisfast.OpenClient(stack.SharedRedis(b).URL(), redisfast.WithTimeout(time.Second))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	pipe, err := client.AutoPipeline()
	if err != nil {
		b.Fatal(err)
	}
	mark, erase := scriptOf(b, client, "lua/mark.lua"), scriptOf(b, client, "lua/clear.lua")
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		key, m := "bench:auto:"+strconv.FormatInt(n.Add(1), 10), newMark()
		for pb.Next() {
			if err := pipe.Do(b.Context(), "evalsha", mark, 1, key, "."+m.Token.String(), m.TTL.Milliseconds()).Err(); err != nil {
				b.Error(err)
			}
			if err := pipe.Do(b.Context(), "evalsha", erase, 1, key, m.Token.String(), "bench:wake").Err(); err != nil {
				b.Error(err)
			}
		}
	})
}

func scriptOf(b *testing.B, client *redis.Client, path string) string {
	b.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	digest, err := client.ScriptLoad(b.Context(), string(source)).Result()
	if err != nil {
		b.Fatal(err)
	}
	return digest
}
