// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// Keys that name people do not belong into logs. The drivers have an option of
// the same kind.
func ExampleWithKeyRedactor() {
	t := new(exampleT)
	defer t.end()
	logged, entries := observer.New(zap.DebugLevel)
	locker := tiertest.NewLocker(t, tier.WithLogger(zap.New(logged)), tier.WithKeyRedactor(func(key string) string {
		kind, _, _ := strings.Cut(key, "/")
		return kind + "/..."
	}))

	ctx := context.Background()
	lease, err := locker.Acquire(ctx, "patient/jane-doe")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Release(ctx))
	fmt.Println(locker.Close(ctx)) // what is logged behind callers is logged by then
	fmt.Println(entries.FilterFieldKey("key").All()[0].ContextMap()["key"])
	// Output:
	// <nil>
	// <nil>
	// patient/...
}
