// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
)

// provider stands for a payment provider: it knows its clients' keys.
type provider struct {
	mu      sync.Mutex
	calls   int
	charges map[string]int
}

func (p *provider) charge(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.charges == nil {
		p.charges = make(map[string]int)
	}
	p.charges[key] = 1
}

// purchase is a sale that is charged: the charge, then what is kept of it, then a
// second effect.
func purchase(p *provider) []idempotency.Step {
	return []idempotency.Step{
		{
			Name: "charged",
			Call: func(_ context.Context, c idempotency.Call) ([]byte, error) {
				p.charge(c.Key)
				return []byte("receipt"), nil
			},
			Save: func(ctx context.Context, tx *sql.Tx, _ idempotency.Call, receipt []byte) ([]byte, error) {
				if _, err := sale(ctx, tx); err != nil {
					return nil, err
				}
				return receipt, nil
			},
		},
		{
			Name: "mailed",
			Call: func(_ context.Context, c idempotency.Call) ([]byte, error) {
				return fmt.Appendf(nil, "mailed %s", c.Before), nil
			},
		},
	}
}

func buy(key string) idempotency.Request {
	return idempotency.Request{Key: key, Fingerprint: payload("one")}
}

func TestReserve_steps(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		lease := s.acquire(t, s.locker)
		p := &provider{}
		for i := range 2 {
			result, err := g.Reserve(t.Context(), lease, buy("order-1"), purchase(p)...)
			if err != nil || string(result.Body) != "mailed receipt" || result.Replayed != (i == 1) {
				t.Fatalf("call %d: %q, replayed %v: %v", i, result.Body, result.Replayed, err)
			}
		}
		s.stock(t, 9)
		if p.calls != 1 {
			t.Errorf("%d charges", p.calls)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestReserve_resumes fails at each point and goes on from the last that was
// reached.
func TestReserve_resumes(t *testing.T) {
	failure := errors.New("provider is down")
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		for name, fail := range map[string]func(){
			"error": nil,
			"panic": func() { panic(failure) },
		} {
			p := &provider{}
			steps := purchase(p)
			mail := steps[1].Call
			steps[1].Call = func(context.Context, idempotency.Call) ([]byte, error) {
				if fail != nil {
					fail()
				}
				return nil, failure
			}
			func() {
				defer func() { _ = recover() }()
				if _, err := g.Reserve(t.Context(), nil, buy(name), steps...); !errors.Is(err, failure) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			steps[1].Call = func(ctx context.Context, c idempotency.Call) ([]byte, error) {
				if c.Attempt != 2 {
					t.Errorf("%s: attempt %d", name, c.Attempt)
				}
				return mail(ctx, c)
			}
			result, err := g.Reserve(t.Context(), nil, buy(name), steps...)
			if err != nil || string(result.Body) != "mailed receipt" || result.Replayed {
				t.Errorf("%s: %q, %v", name, result.Body, err)
			}
			if p.calls != 1 {
				t.Errorf("%s: %d calls for a charge", name, p.calls)
			}
		}
		s.stock(t, 8)
	})
}

// TestReserve_superseded stops the first attempt for longer than it may take.
func TestReserve_superseded_M1_M4_M5(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t, idempotency.WithAttemptTime(time.Second))
		p := &provider{}
		stopped, resume := make(chan struct{}), make(chan struct{})
		steps := purchase(p)
		charge := steps[0].Call
		slow := append([]idempotency.Step{}, steps...)
		slow[0].Call = func(ctx context.Context, c idempotency.Call) ([]byte, error) {
			close(stopped)
			<-resume
			return charge(ctx, c)
		}
		first := make(chan error, 1)
		go func() {
			_, err := g.Reserve(context.Background(), nil, buy("order"), slow...)
			first <- err
		}()
		<-stopped
		if _, err := g.Reserve(t.Context(), nil, buy("order"), steps...); !errors.Is(err, idempotency.ErrInProgress) || idempotency.RetryAfter(err) <= 0 || idempotency.RetryAfter(err) > time.Second {
			t.Errorf("a second call: %v", err)
		}
		time.Sleep(1100 * time.Millisecond)
		result, err := g.Reserve(t.Context(), nil, buy("order"), steps...)
		if err != nil || string(result.Body) != "mailed receipt" {
			t.Errorf("the second attempt: %q, %v", result.Body, err)
		}
		close(resume)
		if err := <-first; !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("the first attempt: %v", err)
		}
		s.stock(t, 9)
		if len(p.charges) != 1 {
			t.Errorf("%d charges", len(p.charges))
		}
		if n := s.Count(t, "SELECT COUNT(*) FROM idempotency WHERE state = 2 AND result = 'mailed receipt'"); n != 1 {
			t.Error("the answer is not the second attempt's")
		}
	})
}
