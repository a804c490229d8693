// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// A wait that ends with the authority silent is an outage, whoever else waited
// and whatever was answered before.

func TestSilence_fromTheStart_isUnavailableInALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.calls.on(func(ctx context.Context, c call) error {
			<-ctx.Done()
			return ctx.Err()
		}, nil)
		var line sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			line.Go(func() { _, errs[i] = r.Acquire(t.Context(), "k", tier.WithWait(800*time.Millisecond)) })
			time.Sleep(100 * time.Millisecond)
		}
		line.Wait()
		for i, err := range errs {
			if !errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrHeld) {
				t.Errorf("caller %d of the line: %v, want ErrUnavailable alone", i, err)
			}
		}
	})
}

func TestSilence_afterARefusal_isUnavailable(t *testing.T) {
	for name, acquire := range map[string]func(*rig) error{
		"Acquire":    func(r *rig) error { _, err := r.Acquire(context.Background(), "a"); return err },
		"AcquireAll": func(r *rig) error { _, err := r.AcquireAll(context.Background(), "a"); return err },
		"AcquireAny": func(r *rig) error { _, err := r.AcquireAny(context.Background(), "a"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.WithWait(time.Second))
				lease := r.peer(t).must(t, "a")
				if err := r.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.filter.Flush()
				var asked atomic.Int32
				r.calls.on(func(ctx context.Context, c call) error {
					if (c.op == "claim" || c.op == "look") && asked.Add(1) > 1 {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}, nil)
				if err := acquire(r); !errors.Is(err, tier.ErrUnavailable) {
					t.Errorf("refused once, silent for most of the wait: %v, want ErrUnavailable", err)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A log sink that blocks may stop what it logs for, and nothing else: not the
// other leases of a renewal.
func TestRenewal_blockedSinkLosesNoOtherLease_G8(t *testing.T) {
	sink := make(chan struct{})
	authority := tiertest.NewAuthority()
	l, err := tier.New(nil, authority, tier.WithNamespace(namespace), tier.WithTTL(2*time.Second),
		tier.WithLogger(zap.New(blockedSink{zapcore.NewNopCore(), sink})))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := l.AcquireAll(t.Context(), tier.Segments("k", 400)...)
	if err != nil {
		t.Fatal(err)
	}
	taken, kept := leases[:200], leases[200:]
	for _, lease := range taken {
		tenure := lease.Tenure()
		if err := authority.Join().Release(t.Context(), driver.Release{Key: tenure.Key, Token: tenure.Token}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(kept[len(kept)-1].Deadline())) // the first one, which a renewal has to move
	for _, lease := range kept {
		if err := lease.Err(); err != nil {
			t.Fatalf("others were taken, and their log lines could not be written: %v", err)
		}
	}
	close(sink)
	if err := kept.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := taken.Release(t.Context()); !errors.Is(err, tier.ErrLost) {
		t.Errorf("release: %v, want ErrLost", err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// blockedSink is a log whose writes wait for the channel to be closed.
type blockedSink struct {
	zapcore.Core
	open <-chan struct{}
}

func (s blockedSink) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (s blockedSink) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return checked.AddCore(e, s)
}

func (s blockedSink) Write(zapcore.Entry, []zapcore.Field) error {
	<-s.open
	return nil
}
