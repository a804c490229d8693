// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
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
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
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
