// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/internal/stack"
)

// table makes a database with one row in it and opens it as the least privileged user, through p and past it.
func table(t *testing.T, s *stack.Server, p *stack.Proxy) (through, direct *sql.DB) {
	t.Helper()
	d := s.CreateDatabase(t)
	require.NoError(t, d.Exec(t.Context(), "CREATE TABLE t (k VARBINARY(20) PRIMARY KEY, n INT)", "INSERT INTO t VALUES ('a', 0)"))
	return openSQL(t, d.DSNAt(p.Addr())), openSQL(t, d.DSN())
}

func value(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT n FROM t").Scan(&n))
	return n
}

// onBoth runs a test behind a proxy on either engine.
func onBoth(t *testing.T, test func(t *testing.T, p *stack.Proxy, through, direct *sql.DB)) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := stack.SharedSQL(t, engine)
			p := stack.StartProxy(t, s)
			through, direct := table(t, s, p)
			test(t, p, through, direct)
		})
	}
}

func TestProxy_SQL_follows(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, _ *sql.DB) {
		var seen []stack.Request
		require.NoError(t, db.PingContext(t.Context()))
		db.SetMaxOpenConns(1)
		p.OnRequest(func(r stack.Request) stack.Action { seen = append(seen, r); return stack.Pass })
		p.Mark()

		_, err := db.ExecContext(t.Context(), "UPDATE t SET n = 1")
		require.NoError(t, err)
		key := []byte("a\xff\x00b")
		_, err = db.ExecContext(t.Context(), "INSERT INTO t VALUES (?, ?)", key, 5)
		require.NoError(t, err)
		stmt, err := db.PrepareContext(t.Context(), "SELECT k, n FROM t WHERE n >= ? ORDER BY n")
		require.NoError(t, err)
		for range 3 { // from the second time on MariaDB leaves the column definitions out
			rows, err := stmt.QueryContext(t.Context(), 1)
			require.NoError(t, err)
			count := 0
			for rows.Next() {
				count++
			}
			require.NoError(t, rows.Err())
			require.NoError(t, rows.Close())
			require.Equal(t, 2, count)
		}
		require.NoError(t, stmt.Close())
		_, err = db.ExecContext(t.Context(), "SELECT nonsense FROM t")
		require.Error(t, err)
		require.NoError(t, db.PingContext(t.Context()))
		p.OnRequest(nil)

		var verbs []string
		for _, r := range seen {
			verbs = append(verbs, strings.TrimPrefix(r.Verb, "COM_"))
		}
		assert.Equal(t, []string{
			"QUERY", "STMT_PREPARE", "STMT_EXECUTE", "STMT_CLOSE",
			"STMT_PREPARE", "STMT_EXECUTE", "STMT_EXECUTE", "STMT_EXECUTE", "STMT_CLOSE", "QUERY", "PING",
		}, verbs)
		assert.Equal(t, "INSERT INTO t VALUES (?, ?)", seen[2].Text)
		assert.True(t, seen[2].Holds(key), "bound values can be looked for")
		assert.False(t, seen[1].Holds(key))
		assert.True(t, stack.Having("select K, n")(seen[5]))
		assert.Equal(t, 9, p.Requests(), "closing a statement has no answer and is not counted")
		assert.Positive(t, p.Bytes())
		assert.Zero(t, p.Dials(), "the connection was there before the mark")
	})
}

func TestProxy_SQL_multipleAndLargeResults(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := stack.SharedSQL(t, engine)
			p := stack.StartProxy(t, s)
			cfg, err := mysql.ParseDSN(s.AdminDSN(""))
			require.NoError(t, err)
			cfg.Addr, cfg.MultiStatements, cfg.MaxAllowedPacket = p.Addr(), true, 0
			db := openSQL(t, cfg.FormatDSN())
			db.SetMaxOpenConns(1)
			for range 2 {
				var replies int
				p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
					if r.Has("SELECT 1") {
						replies++
					}
					return stack.Pass
				})
				rows, err := db.QueryContext(t.Context(), "SELECT 1; SELECT 2 UNION SELECT 3; DO 1; SELECT 4")
				require.NoError(t, err)
				var got []int
				for more := true; more; more = rows.NextResultSet() {
					for rows.Next() {
						var n int
						require.NoError(t, rows.Scan(&n))
						got = append(got, n)
					}
				}
				require.NoError(t, rows.Err())
				require.NoError(t, rows.Close())
				assert.Equal(t, []int{1, 2, 3, 4}, got)
				assert.Equal(t, 1, replies, "one request, one reply, however many results")
				p.OnReply(nil)

				var big string
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT REPEAT('x', 3000000)").Scan(&big))
				assert.Len(t, big, 3000000)
			}
		})
	}
}

func TestProxy_SQL_loseReply_hangUp(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, direct *sql.DB) {
		lost := p.LoseReply(2, stack.Having("update t"), stack.HangUp)
		_, err := db.ExecContext(t.Context(), "UPDATE t SET n = n + ?", 1) // its prepare is number 1
		require.Error(t, err)
		require.Len(t, lost, 1)
		assert.Equal(t, "COM_STMT_EXECUTE", (<-lost).Verb)
		assert.Equal(t, 1, value(t, direct), "the server has carried it out")
		_, err = db.ExecContext(t.Context(), "UPDATE t SET n = n + ?", 1)
		require.NoError(t, err, "only that one reply is lost")
	})
}

func TestProxy_SQL_loseReply_swallow(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, direct *sql.DB) {
		lost := p.LoseReply(1, stack.Having("update t"), stack.Swallow)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := db.ExecContext(ctx, "UPDATE t SET n = n + 1")
			done <- err
		}()
		<-lost
		assert.Equal(t, 1, value(t, direct), "the server has carried it out")
		select {
		case err := <-done:
			t.Fatalf("an answer came: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.NoError(t, db.PingContext(t.Context()), "a new connection is as good as ever")
	})
}

func TestProxy_SQL_injectError(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, direct *sql.DB) {
		var refused *mysql.MySQLError
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Verb == "COM_STMT_EXECUTE" {
				return stack.SQLError(1213, "Deadlock found")
			}
			return stack.Pass
		})
		_, err := db.ExecContext(t.Context(), "UPDATE t SET n = ?", 7)
		require.ErrorAs(t, err, &refused)
		assert.EqualValues(t, 1213, refused.Number)
		assert.Equal(t, "40001", string(refused.SQLState[:]))
		assert.Equal(t, "Deadlock found", refused.Message)
		assert.Equal(t, 0, value(t, direct), "the server was not asked")
		p.OnRequest(func(stack.Request) stack.Action { return stack.SQLStateError(8888, "40001", "rolled back") })
		_, err = db.ExecContext(t.Context(), "UPDATE t SET n = 7")
		require.ErrorAs(t, err, &refused)
		assert.EqualValues(t, 8888, refused.Number)
		assert.Equal(t, "40001", string(refused.SQLState[:]))
		p.OnRequest(nil)

		p.OnReply(func(r stack.Request, a stack.Reply) stack.Action {
			if r.Has("UPDATE") && !a.Failed() {
				return stack.SQLError(1290, "read-only")
			}
			return stack.Pass
		})
		_, err = db.ExecContext(t.Context(), "UPDATE t SET n = 8")
		require.ErrorAs(t, err, &refused)
		assert.EqualValues(t, 1290, refused.Number)
		assert.Equal(t, 8, value(t, direct), "the server has carried it out")
		p.OnReply(nil)
		assert.Equal(t, 8, value(t, db), "the connection goes on")
	})
}

func TestProxy_SQL_replyShowsError(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, _ *sql.DB) {
		var numbers []uint16
		p.OnReply(func(_ stack.Request, a stack.Reply) stack.Action {
			if a.Failed() {
				numbers = append(numbers, a.Number)
			}
			return stack.Pass
		})
		_, err := db.ExecContext(t.Context(), "INSERT INTO t VALUES ('a', 1)")
		require.Error(t, err)
		p.OnReply(nil)
		assert.Equal(t, []uint16{1062}, numbers)
	})
}

func TestProxy_SQL_heldRequestOutlivesItsClient(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, direct *sql.DB) {
		release, held := make(chan struct{}), make(chan struct{})
		p.OnRequest(func(r stack.Request) stack.Action {
			if r.Has("UPDATE t SET n = 9") {
				close(held)
				return stack.HoldUntil(release)
			}
			return stack.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-held; cancel() }()
		_, err := db.ExecContext(ctx, "UPDATE t SET n = 9")
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 0, value(t, direct), "not sent yet")
		close(release)
		assert.Eventually(t, func() bool { return value(t, direct) == 9 }, 5*time.Second, 10*time.Millisecond,
			"a packet under way arrives although its sender has gone")
	})
}

func TestProxy_Redis_follows(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			s := stack.SharedRedis(t)
			p := stack.StartProxy(t, s)
			c := redis.NewClient(&redis.Options{Addr: p.Addr(), Protocol: protocol, MaxRetries: -1, PoolSize: 1})
			t.Cleanup(func() { assert.NoError(t, c.Close()) })
			key := t.Name()
			require.NoError(t, c.Ping(t.Context()).Err())
			p.Mark()

			require.NoError(t, c.Set(t.Context(), key, "v\r\n\x00", 0).Err())
			require.Equal(t, "v\r\n\x00", c.Get(t.Context(), key).Val())
			assert.Equal(t, 2, p.Requests())
			p.OnRequest(func(r stack.Request) stack.Action {
				if r.Has("SET ") && r.Holds([]byte("second")) {
					return stack.RedisError("LOADING Redis is loading the dataset in memory")
				}
				return stack.Pass
			})
			pipe := c.Pipeline()
			first := pipe.Set(t.Context(), key, "first", 0)
			second := pipe.Set(t.Context(), key, "second", 0)
			get := pipe.Get(t.Context(), key)
			hash := pipe.HSet(t.Context(), key+"h", "f", "1")
			all := pipe.HGetAll(t.Context(), key+"h")
			_, err := pipe.Exec(t.Context())
			require.ErrorContains(t, err, "LOADING")
			require.NoError(t, first.Err())
			require.ErrorContains(t, second.Err(), "LOADING", "our answer comes in turn")
			assert.Equal(t, "first", get.Val())
			require.NoError(t, hash.Err())
			assert.Equal(t, map[string]string{"f": "1"}, all.Val())
			p.OnRequest(nil)
			require.NoError(t, c.Del(t.Context(), key, key+"h").Err())
		})
	}
}

func TestProxy_Redis_subscription(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			s := stack.SharedRedis(t)
			p := stack.StartProxy(t, s)
			c := redis.NewClient(&redis.Options{Addr: p.Addr(), Protocol: protocol, MaxRetries: -1})
			t.Cleanup(func() { assert.NoError(t, c.Close()) })
			publish := openRedis(t, s.Addr())
			var confirmed atomic.Int32
			p.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
				if r.Verb == "SUBSCRIBE" {
					confirmed.Add(1)
				}
				return stack.Pass
			})
			one, two := t.Name()+"1", t.Name()+"2"
			sub := c.Subscribe(t.Context(), one, two)
			t.Cleanup(func() { assert.NoError(t, sub.Close()) })
			for range 2 {
				_, err := sub.Receive(t.Context())
				require.NoError(t, err)
			}
			for i := range 3 {
				require.NoError(t, publish.Publish(t.Context(), two, fmt.Sprint(i)).Err())
				m, err := sub.ReceiveMessage(t.Context())
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprint(i), m.Payload)
			}
			require.NoError(t, sub.Ping(t.Context(), "still in step"))
			pong, err := sub.Receive(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "still in step", pong.(*redis.Pong).Payload)
			assert.EqualValues(t, 1, confirmed.Load(), "one request, one reply, however many channels")
		})
	}
}

func TestProxy_Redis_loseReply(t *testing.T) {
	t.Parallel()
	s := stack.SharedRedis(t)
	p := stack.StartProxy(t, s)
	c := openRedis(t, p.Addr())
	direct := openRedis(t, s.Addr())
	key := t.Name()
	lost := p.LoseReply(1, stack.Having("SET "+key), stack.HangUp)
	require.Error(t, c.Set(t.Context(), key, "v", 0).Err())
	assert.True(t, (<-lost).Has("SET"))
	assert.Equal(t, "v", direct.Get(t.Context(), key).Val(), "the server has carried it out")
	require.NoError(t, c.Del(t.Context(), key).Err())
}

func TestProxy_swallowedRequestNeverArrives(t *testing.T) {
	t.Parallel()
	s := stack.SharedRedis(t)
	p := stack.StartProxy(t, s)
	c := openRedis(t, p.Addr())
	require.NoError(t, c.Ping(t.Context()).Err())
	p.OnRequest(func(r stack.Request) stack.Action {
		if r.Verb == "SET" {
			return stack.Swallow
		}
		return stack.Pass
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var silent net.Error
	require.ErrorAs(t, c.Set(ctx, t.Name(), "v", 0).Err(), &silent)
	require.True(t, silent.Timeout())
	assert.Zero(t, openRedis(t, s.Addr()).Exists(t.Context(), t.Name()).Val())
}

func TestProxy_cutAndHeal(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, _ *sql.DB) {
		require.NoError(t, db.PingContext(t.Context()))
		p.Cut()
		require.ErrorContains(t, dial(p.Addr()), "refused")
		_, err := db.ExecContext(t.Context(), "DO 1")
		require.Error(t, err)
		assert.Eventually(t, func() bool { return p.Conns() == 0 }, 5*time.Second, 10*time.Millisecond)
		require.NoError(t, p.Heal())
		_, err = db.ExecContext(t.Context(), "DO 1")
		require.NoError(t, err)
	})
}

func TestProxy_dropGoesOn(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, _ *sql.DB) {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close() //nolint:errcheck // broken on purpose
		p.Mark()
		p.Drop()
		_, err = conn.ExecContext(t.Context(), "DO 1")
		require.Error(t, err)
		require.NoError(t, db.PingContext(t.Context()))
		assert.Equal(t, 1, p.Dials())
	})
}

func TestProxy_blackHole(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, direct *sql.DB) {
		require.NoError(t, db.PingContext(t.Context()))
		p.BlackHole()
		for _, state := range []string{"on an open connection", "on a new one"} {
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			_, err := db.ExecContext(ctx, "UPDATE t SET n = n + 1")
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, "silence, no reset, %s", state)
		}
		require.NoError(t, p.Heal())
		require.NoError(t, db.PingContext(t.Context()))
		assert.Equal(t, 0, value(t, direct), "what went into the hole is gone")
	})
}

func TestProxy_delay(t *testing.T) {
	onBoth(t, func(t *testing.T, p *stack.Proxy, db, _ *sql.DB) {
		require.NoError(t, db.PingContext(t.Context()))
		p.Delay(60*time.Millisecond, 70*time.Millisecond)
		start := time.Now()
		require.NoError(t, db.PingContext(t.Context()))
		assert.GreaterOrEqual(t, time.Since(start), 128*time.Millisecond, "both ways, in whole milliseconds")
		require.NoError(t, p.Heal())
		require.NoError(t, db.PingContext(t.Context()))
	})
}

func TestProxy_serverRestartsBehindIt(t *testing.T) {
	t.Parallel()
	s := stack.StartRedis(t)
	p := stack.StartProxy(t, s)
	c := openRedis(t, p.Addr())
	require.NoError(t, c.Ping(t.Context()).Err())
	require.NoError(t, s.Kill())
	require.Error(t, c.Ping(t.Context()).Err())
	require.NoError(t, s.Restart(t.Context()))
	require.NoError(t, c.Ping(t.Context()).Err())
}

// TestProxy_leaksNothing is for goleak at the end of the package: large pipelines under way while everything breaks.
func TestProxy_leaksNothing(t *testing.T) {
	t.Parallel()
	s := stack.StartRedis(t)
	p := stack.StartProxy(t, s)
	c := redis.NewClient(&redis.Options{
		Addr: p.Addr(), MaxRetries: -1, PoolSize: 16, ContextTimeoutEnabled: true, DialerRetries: 1,
	})
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	big := make([]byte, 200_000)
	for i := range 16 {
		key := fmt.Sprint("k", i)
		load.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				_, _ = c.Pipelined(short, func(pipe redis.Pipeliner) error {
					for range 10 {
						pipe.Set(short, key, big, 0)
						pipe.Get(short, key)
					}
					return nil
				})
				cancel()
			}
		})
	}
	for range 2 {
		for _, fault := range []func(){
			func() { require.NoError(t, s.Kill()) }, p.Drop, p.Cut, p.BlackHole,
			func() { p.Delay(5*time.Millisecond, 5*time.Millisecond) },
		} {
			fault()
			time.Sleep(50 * time.Millisecond)
			require.NoError(t, s.Restart(t.Context()))
			require.NoError(t, p.Heal())
			time.Sleep(50 * time.Millisecond)
		}
	}
	stop()
	load.Wait()
	require.NoError(t, openRedis(t, p.Addr()).Ping(t.Context()).Err()) // its own client: the other's pool remembers refusals
	assert.Eventually(t, func() bool { return p.Conns() <= 16+1 }, 5*time.Second, 10*time.Millisecond, "no connection is left over")
}

func TestProxy_blackHole_endsOnlyWhatLostSomething(t *testing.T) {
	t.Parallel()
	s := stack.SharedRedis(t)
	p := stack.StartProxy(t, s)
	open := func() net.Conn {
		conn, err := net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		return conn
	}
	ping := func(conn net.Conn) error {
		_, err := conn.Write([]byte("PING\r\n"))
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, len("+PONG\r\n")))
		return err
	}
	idle, lossy, left := open(), open(), open()
	for _, conn := range []net.Conn{idle, lossy, left} {
		require.NoError(t, ping(conn))
	}
	p.BlackHole()
	seen := make(chan struct{})
	p.OnRequest(func(stack.Request) stack.Action { close(seen); return stack.Pass })
	_, err := lossy.Write([]byte("PING\r\n"))
	require.NoError(t, err)
	<-seen
	p.OnRequest(nil)
	require.NoError(t, left.Close())
	time.Sleep(50 * time.Millisecond)
	assert.Equal(t, 3, p.Conns(), "that a client has left vanishes too")

	require.NoError(t, p.Heal())
	require.NoError(t, ping(idle), "it lost nothing")
	_, err = lossy.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Eventually(t, func() bool { return p.Conns() == 1 }, 5*time.Second, 10*time.Millisecond)
}
