// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// bothEngines runs a test on both, each in a database of its own.
func bothEngines(t *testing.T, test func(t *testing.T, d *stack.Database)) {
	t.Helper()
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			d := stack.SharedSQL(t, engine).CreateDatabase(t)
			admin := openAdmin(t, d)
			if err := EnsureSchema(t.Context(), admin); err != nil {
				t.Fatal(err)
			}
			test(t, d)
		})
	}
}

func openAdmin(t *testing.T, d *stack.Database) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", d.AdminDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// open makes an authority that is closed with the test. It sweeps only when
// told to.
func open(t *testing.T, dsn string, opts ...Option) *Authority {
	t.Helper()
	a, err := Open(dsn, append([]Option{WithSweepInterval(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if a.timeout == busyLimit {
		a.bound = 2 * busyLimit
	}
	return a
}

func claimOf(key string) driver.Claim {
	return driver.Claim{Key: key, TTL: 10 * time.Second, Holder: "test", Block: 1}
}

func mustClaim(t *testing.T, a *Authority, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := a.Claim(t.Context(), c)
	if err != nil {
		t.Fatalf("Claim(%q): %v", c.Key, err)
	}
	return g
}

func releaseOf(key string, g driver.Grant) driver.Release {
	return driver.Release{Key: key, Token: g.Token, Until: g.Until}
}

func mustRelease(t *testing.T, a *Authority, key string, g driver.Grant) {
	t.Helper()
	if err := a.Release(t.Context(), releaseOf(key, g)); err != nil {
		t.Fatalf("Release(%q): %v", key, err)
	}
}

func renewOne(t *testing.T, a *Authority, key string, g driver.Grant, ttl time.Duration) driver.Renewed {
	t.Helper()
	return a.Renew(t.Context(), []driver.Renewal{{Key: key, Token: g.Token, TTL: ttl, Until: g.Until}})[0]
}

// busyLimit is a statement limit for tests that are not about it: the machine
// may be slow.
const busyLimit = 5 * time.Second

// proxied makes a proxy in front of the database's server.
func proxied(t *testing.T, d *stack.Database) *stack.Proxy {
	t.Helper()
	return stack.StartProxy(t, d.Server())
}

// within polls until ok, at most for d.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// isHeld asks the server itself.
func isHeld(t *testing.T, admin *sql.DB, key string) bool {
	t.Helper()
	var held int
	err := admin.QueryRowContext(t.Context(),
		"SELECT COUNT(*) FROM lease WHERE lock_key = ? AND token IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)", []byte(key)).Scan(&held)
	if err != nil {
		t.Fatal(err)
	}
	return held == 1
}

func mustExec(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, statement string, args ...any,
) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// lockRow locks a key's row as a guarded transaction does, until unlock.
func lockRow(t *testing.T, admin *sql.DB, key string) (unlock func()) {
	t.Helper()
	tx, err := admin.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var fence uint64
	if err := tx.QueryRowContext(t.Context(), "SELECT fence FROM lease WHERE lock_key = ? FOR UPDATE", []byte(key)).Scan(&fence); err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { _ = tx.Rollback() })
	t.Cleanup(unlock)
	return unlock
}

// countWaiting returns a function that says how many statements of a form were
// at the server at a time, at most.
func countWaiting(p *stack.Proxy, statement string) (most func() int) {
	form, _, _ := strings.Cut(statement, "?")
	var mu sync.Mutex
	var now, highest int
	p.OnRequest(func(r stack.Request) stack.Action {
		if r.Has(form) {
			mu.Lock()
			defer mu.Unlock()
			now++
			highest = max(highest, now)
		}
		return stack.Pass
	})
	p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
		if r.Has(form) {
			mu.Lock()
			defer mu.Unlock()
			now--
		}
		return stack.Pass
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return highest
	}
}

func isBusy(err error) bool {
	refusal, ok := errors.AsType[*driver.Refusal](err)
	return ok && refusal.Busy
}

func lossReason(err error) driver.LossReason {
	if loss, ok := errors.AsType[*driver.Loss](err); ok {
		return loss.Reason
	}
	return 0
}

// claimTogether queues claims so that they share a statement: the lane's
// worker is kept from picking while they are added.
func claimTogether(t *testing.T, a *Authority, claims ...driver.Claim) ([]driver.Grant, []error) {
	t.Helper()
	calls := make([]*claimCall, len(claims))
	for i, c := range claims {
		calls[i] = &claimCall{claim: c, answer: make(chan claimAnswer, 1)}
	}
	a.claims.add(calls...)
	grants, errs := make([]driver.Grant, len(calls)), make([]error, len(calls))
	for i, call := range calls {
		select {
		case got := <-call.answer:
			grants[i], errs[i] = got.grant, got.err
		case <-time.After(20 * time.Second):
			t.Fatalf("claim %d of %d has no answer", i, len(calls))
		}
	}
	return grants, errs
}

// prepared is a connection on which statements run as on a session.
func prepared(t *testing.T, admin *sql.DB) *sql.Conn {
	t.Helper()
	c, err := admin.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for _, statement := range preparations {
		mustExec(t, c, statement)
	}
	return c
}
