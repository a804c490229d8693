// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

type closingAuthority struct {
	*tiertest.Authority
	mu      sync.Mutex
	closed  bool
	inside  sync.WaitGroup
	claimed chan struct{}
	answer  chan struct{}
}

func (a *closingAuthority) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.inside.Add(1)
	return true
}

func (a *closingAuthority) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if !a.enter() {
		return driver.Grant{}, errors.New("closed")
	}
	defer a.inside.Done()
	g, err := a.Authority.Claim(ctx, c)
	close(a.claimed)
	<-ctx.Done() // the answer comes at the moment the context ends, and wins
	time.Sleep(20 * time.Millisecond)
	return g, err
}

func (a *closingAuthority) Release(ctx context.Context, r driver.Release) error {
	if !a.enter() {
		return errors.New("closed")
	}
	defer a.inside.Done()
	return a.Authority.Release(ctx, r)
}

func (a *closingAuthority) Close(context.Context) error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.inside.Wait()
	return nil
}

// TestClose_freesWhatAnAcquireIsGranted: an acquire is answered while Close is under way, and the answer wins over its context.
func TestClose_freesWhatAnAcquireIsGranted(t *testing.T) {
	a := &closingAuthority{Authority: tiertest.NewAuthority(), claimed: make(chan struct{}), answer: make(chan struct{})}
	l, err := tier.New(tiertest.NewFilter(), a)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := l.Acquire(context.Background(), "k"); got <- err }()
	<-a.claimed
	if err := l.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
	t.Logf("acquire: %v", <-got)
	time.Sleep(1500 * time.Millisecond)
	if n := a.Held(); n != 0 {
		t.Errorf("P5: Close returned nil and the row is held %d after 1.5 s (TTL 10 s)", n)
	}
}

// TestAcquire_cancelledIsNotHeld: a free key, and a context that has ended.
func TestAcquire_cancelledIsNotHeld(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	held := 0
	for range 200 {
		_, err := r.Acquire(ctx, "free")
		if errors.Is(err, tier.ErrHeld) {
			held++
		}
	}
	if held > 0 {
		t.Errorf("%d of 200 acquires of a free key said ErrHeld", held)
	}
}

// TestAcquire_lineInAnOutage: nobody holds the key, the authority is silent, and ten callers wait in line.
func TestAcquire_lineInAnOutage(t *testing.T) {
	r := newRig(t)
	if err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.authority.Silence()
	defer r.authority.Up()
	var mu sync.Mutex
	held, out := 0, 0
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			_, err := r.Acquire(t.Context(), "k", tier.WithWait(time.Second))
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, tier.ErrHeld) {
				held++
			}
			if errors.Is(err, tier.ErrUnavailable) {
				out++
			}
		})
	}
	wg.Wait()
	if held > 0 {
		t.Errorf("MySQL silent, nobody holds the key: %d callers were told ErrHeld, %d ErrUnavailable", held, out)
	}
}

// TestAcquire_markOfUnknownOutcome_B2: the driver undoes the first mark while the second stands.
func TestAcquire_markOfUnknownOutcome_B2(t *testing.T) {
	r := newRig(t)
	// reply of the first Mark lost; first claim fails in a way that proves nothing happened
	r.calls.on(onOp("claim", func(_ context.Context, c call) error {
		if c.n == 1 {
			return fault("claim", driver.ClassTransient)
		}
		return nil
	}), onOp("mark", func(_ context.Context, c call) error {
		if c.n == 1 {
			return fault("mark", driver.ClassUnknown)
		}
		return nil
	}))
	lease := r.must(t, "k")
	if lease.Level() != tier.LevelFull {
		t.Fatalf("level %v", lease.Level())
	}
	time.Sleep(400 * time.Millisecond)
	if r.filter.Marks() != 1 {
		t.Errorf("the driver's undo of the first Mark deleted the mark of a live LevelFull lease")
	}
	_ = lease.Release(t.Context())
}

// TestAcquire_silentIsNotTheCallersDeadline: the driver's limit ends, and the caller has none.
func TestAcquire_silentIsNotTheCallersDeadline(t *testing.T) {
	r := newRig(t)
	if err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.authority.Silence()
	defer r.authority.Up()
	_, err := r.Acquire(context.Background(), "k", tier.WithWait(800*time.Millisecond))
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's context has no end, and the error is DeadlineExceeded: %v", err)
	}
}

// TestAcquire_slowStartUpCheck: the start-up questions take longer than a try.
func TestAcquire_slowStartUpCheck(t *testing.T) {
	r := newRig(t)
	r.calls.on(onOp("check", func(ctx context.Context, _ call) error {
		select {
		case <-time.After(1200 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}), nil)
	for range 3 {
		lease, err := r.TryAcquire(t.Context(), "k")
		if err == nil {
			_ = lease.Release(t.Context())
			return
		}
		t.Log(err)
	}
	t.Error("a check of 1.2 s never completes for who only tries")
}

// TestClose_waitsForReleaseOfALostLease: a lost lease is being released while
// Close runs, which must not close the filter under it.
func TestClose_waitsForReleaseOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOpenRig(t, tiertest.NewFilter(), tiertest.NewAuthority(), tier.WithTTL(600*time.Millisecond))
		lease := r.must(t, "k")
		answer := make(chan struct{})
		r.calls.on(func(ctx context.Context, c call) error {
			switch c.op {
			case "renew":
				return fault("renew", driver.ClassDown)
			case "release":
				<-answer
			}
			return nil
		}, nil)
		<-lease.Done()
		synctest.Wait() // the mark is cleared, once
		before := r.calls.count("clear")
		released, closed := make(chan error, 1), make(chan error, 1)
		go func() { released <- lease.Release(context.Background()) }()
		synctest.Wait()
		go func() { closed <- r.Close(context.Background()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close did not wait for the release under way: %v", err)
		default:
		}
		close(answer)
		if err := <-released; err != nil && !errors.Is(err, tier.ErrLost) {
			t.Errorf("release: %v", err)
		}
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
		n := r.calls.count("clear")
		if n != before+1 {
			t.Errorf("the mark was cleared %d times by the release, want once: those who woke before may have found the row held", n-before)
		}
		time.Sleep(5 * time.Second)
		if m := r.calls.count("clear"); m > n {
			t.Errorf("the filter was called %d times after it was closed", m-n)
		}
	})
}

// TestClose_namesWhatExpired: a lease expires while Close waits for its holder.
func TestClose_namesWhatExpired(t *testing.T) {
	l, _ := tier.New(nil, tiertest.NewAuthority(), tier.WithTTL(600*time.Millisecond))
	if _, err := l.Acquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.Close(ctx); err == nil {
		t.Error("Close left a lease to expire and answered nil")
	}
}

// TestAcquire_afterALoss: the next of this process comes after our own mark is gone.
func TestAcquire_afterALoss(t *testing.T) {
	r := newRig(t)
	lease := r.must(t, "k")
	// an operator frees the row
	_ = r.authority.Join().Release(context.Background(), driver.Release{Key: namespace + "/k", Token: lease.Tenure().Token})
	r.calls.on(onOp("clear", func(context.Context, call) error { time.Sleep(20 * time.Millisecond); return nil }), nil)
	if err := lease.Verify(t.Context()); !errors.Is(err, tier.ErrLost) {
		t.Fatal(err)
	}
	next, err := r.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("%v", err)
	}
	_ = next.Release(t.Context())
}
