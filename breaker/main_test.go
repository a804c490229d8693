// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/tier/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errDown = &driver.Error{Tier: "mysql", Op: "claim", Class: driver.ClassDown, Err: errors.New("refused")}
	errHeld = &driver.Refusal{Holder: "another"}
)

// tier is one that is up or down, as its probe sees it.
type tier struct {
	*breaker.Health
	changes chan breaker.Change // as a listener saw them

	mu     sync.Mutex
	answer error
	probed []time.Time
}

// newTier starts with a probe that fails.
func newTier(t testing.TB, s breaker.Settings) *tier {
	x := &tier{changes: make(chan breaker.Change, 1000), answer: errDown}
	var err error
	x.Health, err = breaker.New("mysql", s, x.probe)
	require.NoError(t, err)
	t.Cleanup(x.Close)
	x.Listen(func(c breaker.Change) { x.changes <- c })
	return x
}

func (x *tier) probe(context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.probed = append(x.probed, time.Now())
	return x.answer
}

// probesAnswer sets what later probes return.
func (x *tier) probesAnswer(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answer = err
}

func (x *tier) probes() []time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]time.Time(nil), x.probed...)
}

// fail reports n failures at once.
func (x *tier) fail(n int) {
	for range n {
		x.Report(errDown)
	}
}

// traffic reports err every 100 ms for d, the first at once.
func (x *tier) traffic(d time.Duration, err error) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		x.Report(err)
	}
}

// next returns the next change and fails the test when there is none within d.
func (x *tier) next(t testing.TB, d time.Duration) breaker.Change {
	t.Helper()
	select {
	case c := <-x.changes:
		return c
	case <-time.After(d):
		require.FailNow(t, "no change of state", "within %v", d)
		return breaker.Change{}
	}
}

// pass lets d pass in a bubble, and everything happen that is due then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
