// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
)

// TestMain lets the test binary be the processes of a measurement.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childFlag {
		os.Exit(childMain())
	}
	os.Exit(m.Run())
}
