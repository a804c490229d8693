// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
	"github.com/tierlock/tierlock/tier/tiertest"
)

func TestConfirmTx_held_J8(t *testing.T) {
	countingBothWays(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		for range 2 { // a tenure may write as often as it likes
			tx := s.sell(t)
			for range 2 { // and confirm twice
				if err := confirm(t, tx, lease); err != nil {
					t.Fatalf("confirm: %v", err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		s.stock(t, 8)
		// It writes the row, for only written rows are certified in a cluster.
		if n := s.Count(t, "SELECT guard FROM lease WHERE lock_key = ?", []byte(namespace+"/"+key)); n != 4 {
			t.Errorf("guard is %d after 4 confirmations", n)
		}
		if err := lease.Verify(t.Context()); err != nil {
			t.Errorf("the guarded write cost the lease: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestConfirmTx_lost_P3 wakes a holder up that has lost its lease: its write is
// rejected, also before its successor has written anything.
func TestConfirmTx_lost_P3(t *testing.T) {
	row := []byte(namespace + "/" + key)
	for name, lose := range map[string]func(t *testing.T, s *shop){
		"expired while cut off, successor granted": func(t *testing.T, s *shop) {
			s.node.ToMySQL.BlackHole()
			t.Cleanup(func() { _ = s.node.ToMySQL.Heal() })
			next := s.acquire(t, s.peer)
			t.Cleanup(func() {
				if err := next.Release(context.Background()); err != nil {
					t.Errorf("the successor: %v", err)
				}
			})
		},
		"expired while cut off, nobody came": func(t *testing.T, s *shop) {
			s.node.ToMySQL.BlackHole()
			t.Cleanup(func() { _ = s.node.ToMySQL.Heal() })
			time.Sleep(ttl)
		},
		"expired by an operator": func(t *testing.T, s *shop) {
			s.Exec(t, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) WHERE lock_key = ?", row)
		},
		"revoked": func(t *testing.T, s *shop) { s.Revoke(t) },
		"freed": func(t *testing.T, s *shop) {
			s.Exec(t, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6) WHERE lock_key = ?", row)
		},
		"freed, successor came and went": func(t *testing.T, s *shop) {
			s.Exec(t, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6) WHERE lock_key = ?", row)
			s.Flush(t)
			if err := s.acquire(t, s.peer).Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"swept away": func(t *testing.T, s *shop) { s.Exec(t, "DELETE FROM lease WHERE lock_key = ?", row) },
		"of another key's tenure": func(t *testing.T, s *shop) {
			s.Exec(t, "UPDATE lease SET lock_key = 'shop/other' WHERE lock_key = ?", row)
		},
	} {
		t.Run(name, func(t *testing.T) {
			countingBothWays(t, func(t *testing.T, s *shop) {
				lease := s.acquire(t, s.locker)
				t.Cleanup(func() { _ = lease.Release(context.Background()) }) // lost
				tx := s.sell(t)
				lose(t, s)
				if err := confirm(t, tx, lease); !errors.Is(err, idempotency.ErrStaleFence) {
					t.Errorf("confirm: %v, want ErrStaleFence", err)
				}
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
				s.stock(t, 10)
			})
		})
	}
}

// TestConfirmTx_localDeadline leaves the deadline to the server, whose word
// counts also when the local one has passed.
func TestConfirmTx_localDeadline(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		s.node.ToMySQL.BlackHole()
		s.Exec(t, "UPDATE lease SET expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR WHERE token IS NOT NULL")
		<-lease.Done()
		tx := s.sell(t)
		if err := confirm(t, tx, lease); err != nil {
			t.Errorf("confirm of a row that is ours: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		s.stock(t, 9)
		if err := s.node.ToMySQL.Heal(); err != nil {
			t.Error(err)
		}
		_ = lease.Release(t.Context())
	})
}

// TestConfirmTx_afterRelease refuses without a byte once Release has begun,
// however the row looks by then.
func TestConfirmTx_afterRelease(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		tx := s.sell(t)
		// The release gets as far as the proxy: the row is still ours.
		arrive := make(chan struct{})
		begun := make(chan struct{}, 16)
		s.node.ToMySQL.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("token = NULL") {
				begun <- struct{}{}
				return stack.HoldUntil(arrive)
			}
			return stack.Pass
		})
		released := make(chan error, 1)
		go func() { released <- lease.Release(context.Background()) }()
		<-begun
		check := func(when string) {
			t.Helper()
			s.proxy.Mark()
			if err := confirm(t, tx, lease); !errors.Is(err, idempotency.ErrStaleFence) {
				t.Errorf("%s: %v, want ErrStaleFence", when, err)
			}
			if n := s.proxy.Bytes(); n != 0 {
				t.Errorf("%s: %d bytes were sent to refuse it", when, n)
			}
		}
		check("while releasing")
		if n := s.Held(t); n != 1 {
			t.Fatalf("%d rows held while releasing: the test tests nothing", n)
		}
		close(arrive)
		if err := <-released; err != nil {
			t.Errorf("release: %v", err)
		}
		check("released")
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		s.stock(t, 10)
	})
}

// untouched is a transaction that nothing may be asked of.
type untouched struct{ t *testing.T }

func (u untouched) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	u.t.Error("a statement was sent")
	return nil, errors.New("untouched")
}

func (u untouched) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	u.t.Error("a statement was sent")
	return nil, errors.New("untouched")
}

func (u untouched) QueryRowContext(context.Context, string, ...any) *sql.Row {
	u.t.Error("a statement was sent")
	return nil
}

// unfenced grants leases without a fence.
type unfenced struct{ *tiertest.Authority }

func (a unfenced) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := a.Authority.Claim(ctx, c)
	g.Fence = 0
	return g, err
}

func TestConfirmTx_unfenced_L7(t *testing.T) {
	t.Parallel()
	l, err := tier.New(tiertest.NewFilter(), unfenced{tiertest.NewAuthority()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	lease, err := l.Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := confirm(t, untouched{t}, lease); !errors.Is(err, idempotency.ErrUnfenced) {
		t.Errorf("confirm: %v, want ErrUnfenced", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := confirm(t, untouched{t}, lease); !errors.Is(err, idempotency.ErrUnfenced) {
		t.Errorf("confirm after release: %v, want ErrUnfenced", err)
	}
}

// TestConfirmTx_wrongDB has no lease table to write, or may not.
func TestConfirmTx_wrongDB(t *testing.T) {
	t.Run("authority without a table", func(t *testing.T) {
		t.Parallel()
		lease, err := tiertest.NewLocker(t).Acquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if err := confirm(t, untouched{t}, lease); !errors.Is(err, idempotency.ErrWrongDB) {
			t.Errorf("confirm: %v, want ErrWrongDB", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
	other := map[stack.Engine]stack.Engine{stack.MariaDB: stack.MySQL, stack.MySQL: stack.MariaDB}
	for name, pool := range map[string]func(t *testing.T, s *shop) *sql.DB{
		"another server": func(t *testing.T, s *shop) *sql.DB {
			return s.pool(t, stack.SharedSQL(t, other[s.Database.Server().Engine()]).AdminDSN(""))
		},
		"another server's user": func(t *testing.T, s *shop) *sql.DB {
			return s.pool(t, stack.SharedSQL(t, other[s.Database.Server().Engine()]).CreateDatabase(t).DSN())
		},
		"no right to update leases": func(t *testing.T, s *shop) *sql.DB {
			return s.pool(t, s.user(t, "r", "SELECT ON %s.lease"))
		},
		"table dropped": func(t *testing.T, s *shop) *sql.DB {
			s.Exec(t, "RENAME TABLE lease TO away")
			t.Cleanup(func() { s.Exec(t, "RENAME TABLE away TO lease") })
			return s.db
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBothEngines(t, func(t *testing.T, s *shop) {
				lease := s.acquire(t, s.locker)
				t.Cleanup(func() { _ = lease.Release(context.Background()) })
				tx, err := pool(t, s).BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := confirm(t, tx, lease); !errors.Is(err, idempotency.ErrWrongDB) || errors.Is(err, idempotency.ErrStaleFence) {
					t.Errorf("confirm: %v, want ErrWrongDB and never ErrStaleFence", err)
				}
				if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("commit after it: %v, want ErrTxDone", err)
				}
			})
		})
	}
}

// rawTx is a transaction without a method to end it, as some libraries pass
// around: BEGIN by hand on one connection.
type rawTx struct{ *sql.Conn }

// TestConfirmTx_retryTx_J1_J4 meets what ends a transaction through no fault
// of its own: all of it is rolled back, nothing goes on in autocommit.
func TestConfirmTx_retryTx_J1_J4(t *testing.T) {
	isConfirm := stack.Having("guard = guard + 1")
	inject := func(n uint16) func(t *testing.T, s *shop) {
		return func(t *testing.T, s *shop) {
			s.proxy.OnRequest(func(r stack.Request) stack.Action {
				if isConfirm(r) {
					return stack.SQLError(n, "injected")
				}
				return stack.Pass
			})
		}
	}
	faults := map[string]func(t *testing.T, s *shop){
		"1213 deadlock":  inject(1213),
		"1205 lock wait": inject(1205),
		"1020 snapshot":  inject(1020),
		"3572 nowait":    inject(3572),
		"3101 certified": inject(3101),
		"connection lost before": func(t *testing.T, s *shop) {
			s.proxy.OnRequest(func(r stack.Request) stack.Action {
				if isConfirm(r) {
					return stack.HangUp
				}
				return stack.Pass
			})
		},
		"connection lost after": func(t *testing.T, s *shop) { s.proxy.LoseReply(1, isConfirm, stack.HangUp) },
		// The server's own answer, which ends the statement and not the
		// transaction.
		"row locked by another": func(t *testing.T, s *shop) {
			tx, err := s.Admin.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			if _, err := tx.ExecContext(t.Context(), "UPDATE lease SET guard = guard + 0, holder = 'other' WHERE lock_key = 'shop/sku'"); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, arrange := range faults {
		for _, raw := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/raw=%v", name, raw), func(t *testing.T) {
				onBothEngines(t, func(t *testing.T, s *shop) {
					lease := s.acquire(t, s.locker)
					t.Cleanup(func() { _ = lease.Release(context.Background()) })
					conn, err := s.db.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close() //nolint:errcheck // it may be broken, on purpose
					if _, err := conn.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
						t.Fatal(err)
					}
					var tx idempotency.Tx = rawTx{conn}
					if raw {
						_, err = conn.ExecContext(t.Context(), "BEGIN")
					} else {
						tx, err = conn.BeginTx(t.Context(), nil)
					}
					if err == nil {
						_, err = tx.ExecContext(t.Context(), "UPDATE stock SET n = n - 1 WHERE id = 1")
					}
					if err != nil {
						t.Fatal(err)
					}
					arrange(t, s)
					err = confirm(t, tx, lease)
					if !errors.Is(err, idempotency.ErrRetryTx) || errors.Is(err, idempotency.ErrStaleFence) {
						t.Errorf("confirm: %v, want ErrRetryTx and never ErrStaleFence", err)
					}
					// Whoever commits all the same, commits nothing.
					if raw {
						_, _ = conn.ExecContext(t.Context(), "COMMIT")
					} else if err := tx.(*sql.Tx).Commit(); !errors.Is(err, sql.ErrTxDone) {
						t.Errorf("commit after it: %v, want ErrTxDone", err)
					}
					s.stock(t, 10)
				})
			})
		}
	}
}

// failing is a transaction whose confirmation fails.
type failing struct {
	*sql.Tx
	err error
}

func (f failing) ExecContext(context.Context, string, ...any) (sql.Result, error) { return nil, f.err }

// TestConfirmTx_rollbackState_J1 knows errors nobody listed by what the server
// says of the transaction.
func TestConfirmTx_rollbackState_J1(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		for state, retry := range map[string]bool{"40001": true, "45000": false} {
			tx, answer := s.sell(t), &mysql.MySQLError{Number: 9999, Message: "injected"}
			copy(answer.SQLState[:], state)
			if err := confirm(t, failing{tx, answer}, lease); errors.Is(err, idempotency.ErrRetryTx) != retry || !errors.Is(err, answer) {
				t.Errorf("SQLSTATE %s: %v, want ErrRetryTx: %v", state, err, retry)
			}
			if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("SQLSTATE %s: commit after it: %v, want ErrTxDone", state, err)
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestConfirmTx_contextEnds ends the transaction with its caller.
func TestConfirmTx_contextEnds(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		lease := s.acquire(t, s.locker)
		t.Cleanup(func() { _ = lease.Release(context.Background()) })
		tx := s.sell(t)
		s.proxy.BlackHole()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := idempotency.ConfirmTx(ctx, tx, lease)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("confirm: %v, want the context's error", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v with a context of 200ms", took)
		}
		if err := s.proxy.Heal(); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(); err == nil {
			t.Error("committed after an error")
		}
		s.stock(t, 10)
	})
}
