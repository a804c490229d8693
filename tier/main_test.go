// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(stack.Main(m)) }

// soak asks for the full counts, which take longer than a developer waits.
var soak = os.Getenv("TIERLOCK_SOAK") == "1"
