// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

func TestMain(m *testing.M) {
	if os.Getenv(orphanMaker) != "" {
		makeOrphans() // TestServer_diesWithParent runs this binary again
		return
	}
	goleak.VerifyTestMain(stack.Main(m))
}
