// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"os"

	"github.com/go-sql-driver/mysql"
)

// soak asks for the full counts, which take longer than a developer waits.
var soak = os.Getenv("TIERLOCK_SOAK") == "1"

// scaled is how often something is done.
func scaled(usually, full int) int {
	if soak {
		return full
	}
	return usually
}

func init() { _ = mysql.SetLogger(&mysql.NopLogger{}) } // tests break connections on purpose
