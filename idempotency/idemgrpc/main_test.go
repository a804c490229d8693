// SPDX-License-Identifier: Apache-2.0

package idemgrpc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(stack.Main(m)) }
