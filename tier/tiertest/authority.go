// SPDX-License-Identifier: Apache-2.0

package tiertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

var _ driver.Authority = (*Authority)(nil)

// undoAfter is how long a claim whose reply was lost keeps its row.
const undoAfter = 200 * time.Millisecond

// Authority is an in-memory driver.Authority.
type Authority struct {
	Outage
	*rows
}

// rows is what the authorities of one [Authority.Join] family share.
type rows struct {
	mu    sync.Mutex
	byKey map[string]*row
}

type row struct {
	token          driver.Token // zero when free
	fence          uint64
	holder         string
	granted, until time.Time
}

// NewAuthority returns an empty authority.
func NewAuthority() *Authority {
	return &Authority{Outage: Outage{tier: "mysql", limit: 500 * time.Millisecond}, rows: &rows{byKey: make(map[string]*row)}}
}

// Join returns another authority with the same rows and an outage of its own,
// as another process has of the same server.
func (a *Authority) Join() *Authority {
	return &Authority{Outage: Outage{tier: "mysql", limit: 500 * time.Millisecond}, rows: a.rows}
}

func (r *row) held(now time.Time) bool { return !r.token.IsZero() && now.Before(r.until) }

// Held returns how many keys are held.
func (a *Authority) Held() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, r := range a.byKey {
		if r.held(time.Now()) {
			n++
		}
	}
	return n
}

// Revoke takes every lease away, as an operator would.
func (a *Authority) Revoke() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.byKey {
		if !r.token.IsZero() {
			r.token = driver.NewToken()
		}
	}
}

// Claim implements driver.Authority.
func (a *Authority) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	sent := time.Now()
	if err := a.enter(ctx, "claim"); err != nil {
		return driver.Grant{}, err
	}
	grant, err := a.claim(c, sent)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := a.lost("claim"); err != nil {
		time.AfterFunc(undoAfter, func() { _ = a.release(driver.Release{Key: c.Key, Token: grant.Token}) })
		return driver.Grant{}, err
	}
	return grant, nil
}

func (a *Authority) claim(c driver.Claim, sent time.Time) (driver.Grant, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	r := a.byKey[c.Key]
	if r == nil {
		r = &row{fence: uint64(now.UnixNano())}
		a.byKey[c.Key] = r
	}
	if r.held(now) {
		return driver.Grant{}, &driver.Refusal{Left: r.until.Sub(now), Holder: r.holder}
	}
	first := r.fence + 1
	*r = row{token: driver.NewToken(), fence: r.fence + uint64(c.Block), holder: c.Holder, granted: now, until: now.Add(c.TTL)}
	return driver.Grant{Token: r.token, Fence: first, Until: sent.Add(c.TTL)}, nil
}

// Look implements driver.Authority.
func (a *Authority) Look(ctx context.Context, key string) (driver.Row, error) {
	sent := time.Now()
	if err := a.enter(ctx, "look"); err != nil {
		return driver.Row{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.byKey[key]
	if r == nil {
		return driver.Row{}, nil
	}
	left := max(0, time.Until(r.until))
	return driver.Row{
		Held: r.held(time.Now()), Token: r.token, Fence: r.fence, Holder: r.holder,
		Left: left, Until: sent.Add(left),
	}, nil
}

// Renew implements driver.Authority.
func (a *Authority) Renew(ctx context.Context, rs []driver.Renewal) []driver.Renewed {
	sent := time.Now()
	answers := make([]driver.Renewed, len(rs))
	err := a.enter(ctx, "renew")
	for i, r := range rs {
		answers[i] = driver.Renewed{Err: err}
		if err == nil {
			answers[i] = a.renew(r, sent)
		}
		if answers[i].Err == nil {
			answers[i].Err = a.lost("renew")
		}
	}
	return answers
}

func (a *Authority) renew(r driver.Renewal, sent time.Time) driver.Renewed {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if loss := a.lossOf(r.Key, r.Token, now); loss != nil {
		return driver.Renewed{Err: loss}
	}
	a.byKey[r.Key].until = now.Add(r.TTL)
	return driver.Renewed{Until: sent.Add(r.TTL)}
}

// lossOf returns why the token does not hold the key; nil when it does. The
// caller holds the mutex.
func (a *Authority) lossOf(key string, token driver.Token, now time.Time) error {
	r := a.byKey[key]
	switch {
	case r == nil:
		return &driver.Loss{Reason: driver.LossFreed}
	case r.token.IsZero():
		return &driver.Loss{Reason: driver.LossFreed, Fence: r.fence}
	case r.token != token:
		return &driver.Loss{Reason: driver.LossTaken, Fence: r.fence}
	case !r.held(now):
		return &driver.Loss{Reason: driver.LossExpired, Fence: r.fence}
	}
	return nil
}

// Release implements driver.Authority.
func (a *Authority) Release(ctx context.Context, r driver.Release) error {
	uncertain := false
	for {
		err := a.enter(ctx, "release")
		if err == nil {
			err = a.release(r)
			if _, lost := errors.AsType[*driver.Loss](err); lost && uncertain {
				return nil
			}
			if err != nil {
				return err
			}
			if err = a.lost("release"); err == nil {
				return nil
			}
		}
		uncertain = uncertain || driver.ClassOf(err) == driver.ClassUnknown
		if ctx.Err() != nil {
			// Behind the caller; what is never reached expires.
			time.AfterFunc(undoAfter, func() { _ = a.release(r) })
			return ctx.Err()
		}
		select {
		case <-time.After(undoAfter):
		case <-ctx.Done():
		}
	}
}

func (a *Authority) release(r driver.Release) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if loss := a.lossOf(r.Key, r.Token, now); loss != nil {
		return loss
	}
	row := a.byKey[r.Key]
	if until := row.granted.Add(r.MinHold); r.MinHold > 0 && now.Before(until) {
		row.token, row.until = driver.NewToken(), until
		return nil
	}
	row.token = driver.Token{}
	return nil
}

// Timeout implements driver.Authority.
func (a *Authority) Timeout() time.Duration { return 100 * time.Millisecond }

// Check implements driver.Authority.
func (a *Authority) Check(ctx context.Context) error { return a.enter(ctx, "check") }

// Close implements driver.Authority; the authority stays usable for other
// lockers.
func (a *Authority) Close(context.Context) error { return nil }
