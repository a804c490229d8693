// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// twoPolicies stop, and go on locally.
var twoPolicies = []tier.Policy{
	{Match: "payment/**", Degrade: fallback.Ladder{fallback.Retry, fallback.FailClosed}},
	{Match: "inventory/**", Degrade: fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed}, LocalFor: 30 * time.Second},
}

// member is a locker of a test and what it stands on.
type member struct {
	*tier.Locker
	tiers.Node
}

func join(t *testing.T, s *tiers.Tiers, options ...tier.Option) *member {
	t.Helper()
	m := &member{Node: s.Node(t)}
	var err error
	m.Locker, err = tier.New(m.Filter, m.Authority, append([]tier.Option{
		tier.WithNamespace(soakNamespace), tier.WithTTL(5 * time.Second), tier.WithWait(2 * time.Second),
		tier.WithPolicies(twoPolicies...), tier.WithBreaker(breaker.Settings{ProbeEvery: 250 * time.Millisecond}),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeNode(m.Locker); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := m.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *member) must(t *testing.T, key string, want tier.Level) *tier.Lease {
	t.Helper()
	lease, err := m.Acquire(t.Context(), key)
	if err != nil {
		t.Fatalf("acquire %q: %v", key, err)
	}
	if lease.Level() != want {
		t.Fatalf("%q was granted at level %s, want %s", key, lease.Level(), want)
	}
	return lease
}

func released(t *testing.T, leases ...*tier.Lease) {
	t.Helper()
	for _, lease := range leases {
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release %q: %v", lease.Key(), err)
		}
	}
}

// settles waits until an acquire of the key has the level.
func (m *member) settles(t *testing.T, key string, want tier.Level, within time.Duration) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		lease, err := m.Acquire(t.Context(), key, tier.WithWait(300*time.Millisecond))
		if err == nil {
			level := lease.Level()
			released(t, lease)
			if level == want {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%q is not granted at level %s within %v; the last answer: %v, %v", key, want, within, lease, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// opens asks until the key's policy has left the tiers.
func (m *member) opens(t *testing.T, key string) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); m.Rung(key) == fallback.None; {
		if time.Now().After(end) {
			t.Fatal("the breaker does not open")
		}
		if lease, err := m.TryAcquire(t.Context(), key); err == nil {
			released(t, lease)
		}
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leeway is what a starved machine may add to a bound of the product's.
const leeway = 3 * time.Second

// unfenced checks that a lease's guarded write is refused before any I/O: its
// transaction is one that could not do any.
func unfenced(t *testing.T, lease *tier.Lease) {
	t.Helper()
	tx := &silentTx{}
	if err := idempotency.ConfirmTx(t.Context(), tx, lease); !errors.Is(err, idempotency.ErrUnfenced) {
		t.Errorf("the guarded write of a local lease: %v, want ErrUnfenced", err)
	}
	if tx.asked.Load() != 0 {
		t.Errorf("it was refused after %d statements", tx.asked.Load())
	}
}

// silentTx counts what it is asked for.
type silentTx struct{ asked atomic.Int64 }

func (s *silentTx) QueryRowContext(context.Context, string, ...any) *sql.Row {
	s.asked.Add(1)
	return nil
}

func (s *silentTx) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	s.asked.Add(1)
	return nil, sql.ErrConnDone
}

func (s *silentTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	s.asked.Add(1)
	return nil, sql.ErrConnDone
}

func (s *silentTx) Commit() error   { return nil }
func (s *silentTx) Rollback() error { return nil }
