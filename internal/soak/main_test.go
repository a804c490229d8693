// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // tests break connections on purpose
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(roles[role]())
	}
	goleak.VerifyTestMain(stack.Main(m))
}

// soak asks for the full counts, which take longer than a developer waits.
var soak = os.Getenv("TIERLOCK_SOAK") == "1"
