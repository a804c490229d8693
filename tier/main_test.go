// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

// reexec holds what the test binary does instead of testing when a variable of
// that name is set: it is then another process of a test.
var reexec = map[string]func() int{}

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // tests break connections on purpose
	for name, run := range reexec {
		if os.Getenv(name) != "" {
			os.Exit(run())
		}
	}
	goleak.VerifyTestMain(stack.Main(m))
}

// soak asks for the full counts, which take longer than a developer waits.
var soak = os.Getenv("TIERLOCK_SOAK") == "1"
