// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tierlock/tierlock/internal/stack"
)

// verdict is a test that only remembers how it ended.
type verdict struct {
	testing.TB
	failed, skipped string
}

func (v *verdict) Helper()        {}
func (v *verdict) Cleanup(func()) {}

func (v *verdict) Fatalf(format string, args ...any) {
	v.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (v *verdict) Skipf(format string, args ...any) {
	v.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMissing_failsUnlessToldOtherwise(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // where no MySQL is
	t.Setenv("PATH", t.TempDir())
	ask := func(start func(stack.TB)) *verdict {
		v, done := &verdict{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			start(v)
		}()
		<-done
		return v
	}
	mysql := func(tb stack.TB) { stack.StartSQL(tb, stack.MySQL) }
	redis := func(tb stack.TB) { stack.StartRedis(tb) }

	t.Setenv("CI", "")
	assert.Contains(t, ask(mysql).failed, "make mysql", "missing fails")
	assert.Contains(t, ask(redis).failed, "make services")
	t.Setenv("TIERLOCK_WITHOUT_MYSQL", "1")
	assert.Contains(t, ask(mysql).skipped, "make mysql", "unless told otherwise")
	assert.Contains(t, ask(redis).failed, "make services", "which is about MySQL only")
	t.Setenv("CI", "true")
	assert.Contains(t, ask(mysql).failed, "make mysql", "and never under CI")
}
