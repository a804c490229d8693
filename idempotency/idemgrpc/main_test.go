// SPDX-License-Identifier: Apache-2.0

package idemgrpc_test

import (
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(stack.Main(m)) }
