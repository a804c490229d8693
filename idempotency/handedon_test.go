// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// waiters is how many calls wait in a locker with these metrics.
func waiters(t *testing.T, metrics prometheus.Gatherer) (n float64) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "tierlock_waiters" {
			for _, m := range family.GetMetric() {
				n += m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// TestDo_returnedEarly_P3 leaves writers behind in a Do that has returned. The lease was
// handed on, so that the row still bears the token that they would prove: they are
// refused without a byte.
func TestDo_returnedEarly_P3(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		metrics := prometheus.NewRegistry()
		l := open(t, s.Node(t), tier.WithMetrics(metrics), tier.WithHandoffFor(time.Minute))
		tx := s.sell(t) // of the one who stays behind
		type answer struct {
			lease *tier.Lease
			err   error
		}
		next := make(chan answer, 1)
		var left *tier.Lease
		if err := l.Do(t.Context(), key, func(_ context.Context, lease *tier.Lease) error {
			left = lease
			go func() {
				lease, err := l.Acquire(t.Context(), key)
				next <- answer{lease, err}
			}()
			for waiters(t, metrics) == 0 {
				time.Sleep(time.Millisecond)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		got := <-next
		if got.err != nil {
			t.Fatal(got.err)
		}
		lease := got.lease
		if lease.Tenure().Token != left.Tenure().Token || lease.Fence() <= left.Fence() {
			t.Fatalf("not handed on: the test tests nothing")
		}
		s.proxy.Mark()
		for name, refused := range map[string]func() error{
			"ConfirmTx": func() error { return confirm(t, tx, left) },
			"ReleaseTx": func() error { return idempotency.ReleaseTx(t.Context(), tx, left) },
			"Admit":     func() error { return g.Admit(t.Context(), tx, left) },
		} {
			if err := refused(); !errors.Is(err, idempotency.ErrStaleFence) {
				t.Errorf("%s after the hand-off: %v, want ErrStaleFence", name, err)
			}
		}
		if n := s.proxy.Bytes(); n != 0 {
			t.Errorf("%d bytes were sent to refuse it", n)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if _, err := g.Once(t.Context(), left, buy("left behind"), sale); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("Once after the hand-off: %v, want ErrStaleFence", err)
		}
		if err := g.Claim(t.Context(), left); !errors.Is(err, idempotency.ErrStaleFence) {
			t.Errorf("Claim after the hand-off: %v, want ErrStaleFence", err)
		}
		s.stock(t, 10)
		if _, err := g.Once(t.Context(), lease, buy("next"), sale); err != nil {
			t.Errorf("the next tenure's write: %v", err)
		}
		s.stock(t, 9)
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestDo_returnedEarly_pinned_P3 has the write of the one who stays behind confirmed
// when Do returns: nobody has the key before its COMMIT, and then not by a hand-off,
// because the library does not see that COMMIT.
func TestDo_returnedEarly_pinned_P3(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		metrics := prometheus.NewRegistry()
		l := open(t, s.Node(t), tier.WithMetrics(metrics), tier.WithHandoffFor(time.Minute))
		tx := s.sell(t)
		var left *tier.Lease
		next := make(chan *tier.Lease, 1)
		_ = l.Do(t.Context(), key, func(_ context.Context, lease *tier.Lease) error {
			left = lease
			go func() {
				lease, err := l.Acquire(t.Context(), key)
				if err != nil {
					t.Error(err)
				}
				next <- lease
			}()
			for waiters(t, metrics) == 0 {
				time.Sleep(time.Millisecond)
			}
			return confirm(t, tx, lease)
		}) // the release is under way when its bound has come: the row is locked
		select {
		case lease := <-next:
			next <- lease
			t.Error("the key was passed on while a confirmed write was not committed")
		case <-time.After(200 * time.Millisecond):
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		lease := <-next
		if lease == nil {
			return
		}
		s.stock(t, 9)
		if lease.Tenure().Token == left.Tenure().Token || lease.Fence() <= left.Fence() {
			t.Errorf("fence %d after %d; the token must be another", lease.Fence(), left.Fence())
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
