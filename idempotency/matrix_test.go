// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// isolationParameter sets the isolation of a session in its DSN.
func isolationParameter(e stack.Engine, level string) string {
	name := "transaction_isolation"
	if e == stack.MariaDB {
		name = "tx_isolation"
	}
	return name + "=%27" + level + "%27"
}

// TestGuard_everyDialect_J8_J13 has all of it mean the same whatever the DSN of the
// business's pool makes of SQL, and whatever isolation a caller's transaction has.
func TestGuard_everyDialect_J8_J13(t *testing.T) {
	t.Parallel()
	zones := []string{
		"time_zone=%27%2B00%3A00%27",
		"parseTime=true&loc=Asia%2FTokyo&time_zone=%27%2B09%3A00%27",
		"parseTime=true&loc=Local&time_zone=%27-05%3A30%27",
	}
	ways := []string{"", "clientFoundRows=true", "interpolateParams=true", "clientFoundRows=true&interpolateParams=true"}
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, engine, "")
			s.guardTables(t)
			lease := s.acquire(t, s.locker)
			combination := 0
			dialects := []string{"sql_safe_updates=1", "sql_mode=%27ANSI%2CNO_BACKSLASH_ESCAPES%27", "sql_mode=%27ANSI%2CNO_BACKSLASH_ESCAPES%27&interpolateParams=true"}
			for _, isolation := range []string{"READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
				for _, zone := range zones {
					for _, way := range ways {
						for _, autocommit := range []string{"autocommit=1", "autocommit=0"} {
							combination++
							dialect := fmt.Sprintf("%s&%s&%s", isolationParameter(engine, isolation), zone, autocommit)
							if way != "" {
								dialect += "&" + way
							}
							if soak || combination%29 == 0 || zone == zones[0] && autocommit == "autocommit=0" && way == "" {
								dialects = append(dialects, dialect)
							}
						}
					}
				}
			}
			for i, dialect := range dialects {
				levels := []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
				if !soak {
					levels = levels[i%len(levels):][:1]
				}
				for _, level := range levels {
					d := dialectTest{shop: s, db: s.pool(t, tiers.WithParameters(s.business, dialect)), level: level}
					d.db.SetMaxOpenConns(2)
					d.guard = s.newGuard(t, d.db, idempotency.WithAttemptTime(time.Second))
					d.prefix = fmt.Sprintf("%d-%v-", i, level)
					t.Run(fmt.Sprintf("%s/%v", dialect, level), func(t *testing.T) {
						d.once(t, func(r idempotency.Request) (idempotency.Result, error) {
							return d.guard.Once(t.Context(), lease, r, sale)
						})
						d.once(t, func(r idempotency.Request) (idempotency.Result, error) { return d.onceTx(t, lease, r) })
						d.reserve(t)
						if n, err := d.guard.Reap(t.Context()); err != nil {
							t.Errorf("reap: %d, %v", n, err)
						}
						if err := d.guard.Check(t.Context()); err != nil {
							t.Errorf("check: %v", err)
						}
						idle(t, d.db)
						if n := s.Count(t, "SELECT COUNT(*) FROM idempotency WHERE expires_at <= UTC_TIMESTAMP(6)"); n != 0 {
							t.Errorf("%d expired requests are left after the reaper", n)
						}
					})
				}
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// dialectTest is one pool.
type dialectTest struct {
	*shop
	db     *sql.DB
	guard  *idempotency.Guard
	level  sql.IsolationLevel // of the caller's transactions
	prefix string             // of keys
	asked  int
}

func (d *dialectTest) request() idempotency.Request {
	d.asked++
	return buy(fmt.Sprint(d.prefix, d.asked))
}

// onceTx commits what it is told is done.
func (d *dialectTest) onceTx(t *testing.T, lease *tier.Lease, r idempotency.Request) (idempotency.Result, error) {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: d.level})
	if err != nil {
		t.Fatal(err)
	}
	// The transaction's snapshot is older than whatever follows.
	if _, err := tx.ExecContext(t.Context(), "SELECT COUNT(*) FROM idempotency"); err != nil {
		t.Fatal(err)
	}
	result, err := d.guard.OnceTx(t.Context(), tx, lease, r, func(ctx context.Context) ([]byte, error) { return sale(ctx, tx) })
	if err != nil {
		if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("rollback of a transaction that was rolled back: %v", err)
		}
		return result, err
	}
	return result, tx.Commit()
}

// once does a write, replays it, refuses another under its key, and does it again
// when it has expired.
func (d *dialectTest) once(t *testing.T, ask func(r idempotency.Request) (idempotency.Result, error)) {
	t.Helper()
	d.restock(t, 10)
	r := d.request()
	for i := range 3 {
		result, err := ask(r)
		if err != nil || string(result.Body) != "left: 9" || result.Replayed != (i > 0) {
			t.Errorf("call %d: %q, replayed %v: %v", i, result.Body, result.Replayed, err)
		}
		if age := time.Since(result.CompletedAt).Seconds(); result.Replayed && math.Abs(age) > 30 {
			t.Errorf("call %d: completed %.0f s ago, at %v", i, age, result.CompletedAt)
		}
	}
	other := r
	other.Fingerprint = payload("two")
	if result, err := ask(other); !errors.Is(err, idempotency.ErrMismatch) || result.Body != nil {
		t.Errorf("another request: %q, %v", result.Body, err)
	}
	d.stock(t, 9)
	r = d.request()
	r.TTL = 50 * time.Millisecond
	for i := range 2 {
		result, err := ask(r)
		if want := fmt.Sprint("left: ", 8-i); err != nil || string(result.Body) != want || result.Replayed {
			t.Errorf("expired %d times: %q, replayed %v: %v", i, result.Body, result.Replayed, err)
		}
		for end := time.Now().Add(10 * time.Second); d.Count(t, "SELECT expires_at > UTC_TIMESTAMP(6) FROM idempotency WHERE request_key = ?", []byte(r.Key)) == 1; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it does not expire")
			}
		}
	}
	d.stock(t, 7)
}

// reserve fails in the second step and goes on at once from there, in another pool.
func (d *dialectTest) reserve(t *testing.T) {
	t.Helper()
	d.restock(t, 10)
	r := d.request()
	p := &provider{}
	failure := errors.New("no mail today")
	steps := purchase(p)
	steps[1].Call = func(context.Context, idempotency.Call) ([]byte, error) { return nil, failure }
	if _, err := d.guard.Reserve(t.Context(), nil, r, steps...); !errors.Is(err, failure) {
		t.Errorf("first attempt: %v", err)
	}
	peer := d.newGuard(t, d.shop.db)
	for i := range 2 {
		result, err := peer.Reserve(t.Context(), nil, r, purchase(p)...)
		if err != nil || string(result.Body) != "mailed receipt" || result.Replayed != (i > 0) {
			t.Errorf("attempt %d: %q, replayed %v: %v", i+2, result.Body, result.Replayed, err)
		}
	}
	result, err := d.guard.Reserve(t.Context(), nil, r, purchase(p)...)
	if err != nil || string(result.Body) != "mailed receipt" || !result.Replayed || math.Abs(time.Since(result.CompletedAt).Seconds()) > 30 {
		t.Errorf("replayed: %q, %v, completed at %v: %v", result.Body, result.Replayed, result.CompletedAt, err)
	}
	if p.calls != 1 {
		t.Errorf("%d calls for one charge", p.calls)
	}
	d.stock(t, 9)
}

// idle checks that no connection of a pool is in use, once those that are given
// back behind have been.
func idle(t *testing.T, db *sql.DB) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); db.Stats().InUse != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are still in use", db.Stats().InUse)
		}
	}
}

// TestOnceTx_olderSnapshot_J13 replays what was stored after the snapshot of the
// caller's transaction.
func TestOnceTx_olderSnapshot_J13(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		g := s.guard(t)
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			request := buy(level.String())
			tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			if err != nil {
				t.Fatal(err)
			}
			var n, then int
			count := "SELECT COUNT(*) FROM idempotency WHERE request_key = ?"
			if err := tx.QueryRowContext(t.Context(), count, []byte(request.Key)).Scan(&n); err != nil {
				t.Fatal(err)
			}
			first, err := g.Once(t.Context(), nil, request, sale)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRowContext(t.Context(), count, []byte(request.Key)).Scan(&then); err != nil || (then == n) != (level == sql.LevelRepeatableRead) {
				t.Errorf("%v: %d rows are seen, %v: the test tests nothing", level, then, err)
			}
			result, err := g.OnceTx(t.Context(), tx, nil, request, func(context.Context) ([]byte, error) { return nil, errors.New("run again") })
			if err != nil || !result.Replayed || string(result.Body) != string(first.Body) {
				t.Errorf("%v: %q, replayed %v: %v; want %q", level, result.Body, result.Replayed, err, first.Body)
			}
			if err := tx.Commit(); err != nil {
				t.Errorf("%v: commit: %v", level, err)
			}
		}
		s.stock(t, 8)
	})
}
