// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

func TestMain(m *testing.M) {
	if os.Getenv(orphanMaker) != "" {
		makeOrphans() // TestServer_diesWithParent runs this binary again
		return
	}
	redis.SetLogger(quiet{}) // it reports every refused dial, and these tests are about refused dials
	goleak.VerifyTestMain(stack.Main(m))
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
