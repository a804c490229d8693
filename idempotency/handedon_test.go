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

// crew is a locker with callers who wait behind a holder.
type crew struct {
	*tier.Locker
	metrics *prometheus.Registry
	next    chan answer // of the one who waits
}

type answer struct {
	lease *tier.Lease
	err   error
}

func newCrew(t *testing.T, s *shop) *crew {
	t.Helper()
	c := &crew{metrics: prometheus.NewRegistry(), next: make(chan answer, 1)}
	c.Locker = open(t, s.Node(t), tier.WithMetrics(c.metrics), tier.WithHandoffFor(time.Minute))
	return c
}

// queue has one wait for the key, and returns when he does.
func (c *crew) queue(t *testing.T) error {
	t.Helper()
	go func() {
		lease, err := c.Acquire(t.Context(), key)
		c.next <- answer{lease, err}
	}()
	for end := time.Now().Add(10 * time.Second); c.waiting(t) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("nobody waits for the key")
		}
	}
	return nil
}

func (c *crew) waiting(t *testing.T) (n float64) {
	t.Helper()
	families, err := c.metrics.Gather()
	if err != nil {
		t.Error(err)
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
		c := newCrew(t, s)
		tx := s.sell(t) // of the one who stays behind
		var left *tier.Lease
		if err := c.Do(t.Context(), key, func(_ context.Context, lease *tier.Lease) error {
			left = lease
			return c.queue(t)
		}); err != nil {
			t.Fatal(err)
		}
		got := <-c.next
		if got.err != nil {
			t.Fatal(got.err)
		}
		lease := got.lease
		if lease.Tenure().Token != left.Tenure().Token || lease.Fence() <= left.Fence() {
			t.Fatal("not handed on: the test tests nothing")
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
		c := newCrew(t, s)
		tx := s.sell(t)
		var left *tier.Lease
		err := c.Do(t.Context(), key, func(_ context.Context, lease *tier.Lease) error {
			left = lease
			if err := errors.Join(c.queue(t), confirm(t, tx, lease)); err != nil {
				t.Errorf("while it is held: %v", err)
			}
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, tier.ErrLost) {
			t.Errorf("the release of a row that is locked: %v, want context.DeadlineExceeded", err)
		}
		select {
		case got := <-c.next:
			c.next <- got
			t.Errorf("the key was passed on while a confirmed write was not committed: %v, %v", got.lease, got.err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		got := <-c.next
		if got.err != nil {
			t.Fatal(got.err)
		}
		lease := got.lease
		s.stock(t, 9)
		if lease.Tenure().Token == left.Tenure().Token || lease.Fence() <= left.Fence() {
			t.Errorf("fence %d after %d; the token must be another", lease.Fence(), left.Fence())
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
