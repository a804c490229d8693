// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

// Check implements [driver.Filter]: it plants a mark under a key of its own and
// clears it with a message, which is all the filter ever does. It warns when the
// server may evict marks or the client does not keep deadlines.
func (f *Filter) Check(ctx context.Context) error {
	// The key is new, so that checks of many processes do not meet.
	m := driver.Mark{Token: driver.NewToken(), TTL: f.timeout}
	key := "check/" + m.Token.String()
	st, err := f.Mark(ctx, key, m)
	if err != nil {
		return err
	}
	if !st.Ours {
		return fault("check", errors.New("the server answered that a new mark is foreign"))
	}
	if err := f.Clear(ctx, key, m.Token, true); err != nil {
		return err
	}

	if !keepsDeadlines(f.client) {
		f.log.Warn("redis client has ContextTimeoutEnabled off: calls return in time, but what they left may run longer")
	}
	policy, err := f.evictionPolicy(ctx)
	switch {
	case err != nil:
		f.log.Debug("redis does not tell its eviction policy", zap.Error(err))
	case policy != "" && policy != "noeviction":
		f.log.Warn("redis may evict marks when its memory is full: that costs time, never exclusion; give marks a server with noeviction",
			zap.String("maxmemory_policy", policy))
	}
	if err := ctx.Err(); err != nil {
		return callerFault("check", err)
	}
	return nil
}

// evictionPolicy asks INFO, which managed servers offer where CONFIG is closed.
func (f *Filter) evictionPolicy(ctx context.Context) (string, error) {
	return call(ctx, f, exchange[string]{
		op: "check",
		run: func(ctx context.Context) (string, error) {
			info, err := f.client.Info(ctx, "memory").Result()
			if err != nil {
				return "", err
			}
			for line := range strings.Lines(info) {
				if policy, ok := strings.CutPrefix(line, "maxmemory_policy:"); ok {
					return strings.TrimSpace(policy), nil
				}
			}
			return "", nil
		},
	})
}

// keepsDeadlines reports whether the client ends what its context's deadline has
// passed; true for clients that do not say.
func keepsDeadlines(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	}
	return true
}
