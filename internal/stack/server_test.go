// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/internal/stack"
)

func openRedis(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second})
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func openSQL(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func TestRedis_killRestart(t *testing.T) {
	t.Parallel()
	s := stack.StartRedis(t)
	c := openRedis(t, s.Addr())
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())

	require.NoError(t, s.Kill())
	require.Error(t, c.Ping(t.Context()).Err())
	require.NoError(t, s.Kill(), "killing what is dead is no error")
	require.Error(t, s.Pause(), "nothing to pause")

	addr := s.Addr()
	require.NoError(t, s.Restart(t.Context()))
	assert.Equal(t, addr, s.Addr())
	assert.ErrorIs(t, c.Get(t.Context(), "k").Err(), redis.Nil, "Redis comes back empty")
}

func TestRedis_pauseResume(t *testing.T) {
	t.Parallel()
	s := stack.StartRedis(t)
	c := openRedis(t, s.Addr())
	require.NoError(t, c.Ping(t.Context()).Err())

	require.NoError(t, s.Pause())
	err := c.Ping(t.Context()).Err()
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "a paused server is silent, it does not refuse: %v", err)

	require.NoError(t, s.Resume())
	require.NoError(t, c.Ping(t.Context()).Err())
}

func TestSQL_killRestart(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := stack.StartSQL(t, engine)
			d := s.CreateDatabase(t)
			require.NoError(t, d.Exec(t.Context(), "CREATE TABLE t (n INT PRIMARY KEY)"))
			db := openSQL(t, d.DSN())
			_, err := db.ExecContext(t.Context(), "INSERT INTO t VALUES (7)")
			require.NoError(t, err)

			require.NoError(t, s.Kill())
			require.Error(t, db.PingContext(t.Context()))
			require.NoError(t, s.Restart(t.Context()))

			var n int
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT n FROM t").Scan(&n), "what was committed survives SIGKILL")
			assert.Equal(t, 7, n)

			require.NoError(t, s.Pause())
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, db.PingContext(ctx), context.DeadlineExceeded)
			require.NoError(t, s.Resume())
			require.NoError(t, db.PingContext(t.Context()))
		})
	}
}

func TestSQL_engineAndDurability(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := stack.SharedSQL(t, engine)
			assert.Equal(t, engine, s.Engine())
			db := openSQL(t, s.AdminDSN(""))
			var version string
			var flush, binlog, sync int
			require.NoError(t, db.QueryRowContext(t.Context(),
				"SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog").Scan(&version, &flush, &binlog, &sync))
			assert.Equal(t, version, s.Version())
			assert.Equal(t, engine == stack.MariaDB, strings.Contains(version, "MariaDB"))
			assert.Equal(t, 1, flush)
			if binlog == 1 {
				assert.Equal(t, 1, sync)
			}
			assert.Equal(t, engine == stack.MySQL, binlog == 1, "the binary log is on where it is by default")
		})
	}
}

func TestDatabase_leastPrivilege(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := stack.SharedSQL(t, engine)
			mine, other := s.CreateDatabase(t), s.CreateDatabase(t)
			for _, d := range []*stack.Database{mine, other} {
				require.NoError(t, d.Exec(t.Context(), "CREATE TABLE t (n INT PRIMARY KEY)"))
			}
			db := openSQL(t, mine.DSN())
			for _, allowed := range []string{"INSERT INTO t VALUES (1)", "UPDATE t SET n = 2", "SELECT n FROM t FOR UPDATE", "DELETE FROM t"} {
				_, err := db.ExecContext(t.Context(), allowed)
				require.NoError(t, err, allowed)
			}
			for _, denied := range []string{
				"CREATE TABLE u (n INT)", "DROP TABLE t", "TRUNCATE TABLE t", "ALTER TABLE t ADD m INT",
				"SET GLOBAL max_connections = 10", "SELECT * FROM " + other.Name + ".t", "SELECT * FROM mysql.user",
			} {
				_, err := db.ExecContext(t.Context(), denied)
				var refused *mysql.MySQLError
				require.ErrorAs(t, err, &refused, denied)
			}
			require.NoError(t, mine.Drop(t.Context()))
			require.Error(t, openSQL(t, mine.DSN()).PingContext(t.Context()))
		})
	}
}

func TestShared_isOne(t *testing.T) {
	t.Parallel()
	assert.Same(t, stack.SharedRedis(t), stack.SharedRedis(t))
	assert.Same(t, stack.SharedSQL(t, stack.MariaDB), stack.SharedSQL(t, stack.MariaDB))
}

func TestServer_startFailureShowsLog(t *testing.T) {
	t.Parallel()
	_, err := stack.Redis(t.Context(), stack.Options{Private: true, Args: []string{"--no-such-setting", "1"}})
	require.ErrorContains(t, err, "no-such-setting")
	_, err = stack.SQL(t.Context(), stack.MariaDB, stack.Options{Private: true, Args: []string{"--no-such-setting"}})
	require.ErrorContains(t, err, "no-such-setting")
}

func TestServer_startRespectsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := stack.SQL(ctx, stack.MariaDB, stack.Options{Private: true})
	require.ErrorIs(t, err, context.Canceled)
}

func TestServer_stopRemovesData(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // not parallel: only this server's data is to be seen
	s, err := stack.Redis(t.Context(), stack.Options{Private: true})
	require.NoError(t, err)
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "tierlock-srv-*"))
	require.NoError(t, err)
	require.Len(t, found, 2, "a directory and its lock")
	require.NoError(t, s.Stop())
	require.NoError(t, s.Stop(), "stopping twice is no error")
	found, err = filepath.Glob(filepath.Join(os.TempDir(), "tierlock-srv-*"))
	require.NoError(t, err)
	assert.Empty(t, found)
	require.Error(t, s.Restart(t.Context()), "its data is gone")
}

func TestGiven_isNotOurs(t *testing.T) {
	own := stack.SharedSQL(t, stack.MariaDB)
	ownRedis := stack.SharedRedis(t)
	t.Setenv("TIERLOCK_MYSQL_DSN", own.AdminDSN("mysql"))
	t.Setenv("TIERLOCK_REDIS_URL", ownRedis.URL())

	s, err := stack.SQL(t.Context(), stack.MariaDB, stack.Options{})
	require.NoError(t, err)
	assert.Equal(t, own.Addr(), s.Addr())
	assert.Equal(t, stack.MariaDB, s.Engine())
	r, err := stack.Redis(t.Context(), stack.Options{})
	require.NoError(t, err)
	assert.Equal(t, ownRedis.Addr(), r.Addr())

	for _, given := range []*stack.Server{s, r} {
		require.ErrorIs(t, given.Kill(), stack.ErrNotOurs)
		require.ErrorIs(t, given.Pause(), stack.ErrNotOurs)
		require.ErrorIs(t, given.Resume(), stack.ErrNotOurs)
		require.ErrorIs(t, given.Restart(t.Context()), stack.ErrNotOurs)
		require.NoError(t, given.Stop())
	}
	d := s.CreateDatabase(t)
	require.NoError(t, openSQL(t, d.DSN()).PingContext(t.Context()), "databases can be made on a given server")
}

func TestGiven_badAddressHidesPassword(t *testing.T) {
	t.Setenv("TIERLOCK_MYSQL_DSN", "root:hunter2@tcp(127.0.0.1:1")
	t.Setenv("TIERLOCK_REDIS_URL", "redis://:hunter2@127.0.0.1:nonsense")
	_, err := stack.SQL(t.Context(), stack.MariaDB, stack.Options{})
	require.ErrorContains(t, err, "TIERLOCK_MYSQL_DSN")
	assert.NotContains(t, err.Error(), "hunter2")
	_, err = stack.Redis(t.Context(), stack.Options{})
	require.ErrorContains(t, err, "TIERLOCK_REDIS_URL")
	assert.NotContains(t, err.Error(), "hunter2")
}

const orphanMaker = "STACK_TEST_MAKE_ORPHANS"

// makeOrphans starts one server of each kind from a short-lived goroutine, says where they are, and waits to be killed.
func makeOrphans() {
	report := make(chan string)
	for _, start := range []func() (*stack.Server, error){
		func() (*stack.Server, error) {
			return stack.Redis(context.Background(), stack.Options{Private: true})
		},
		func() (*stack.Server, error) {
			return stack.SQL(context.Background(), stack.MariaDB, stack.Options{Private: true})
		},
		func() (*stack.Server, error) {
			return stack.SQL(context.Background(), stack.MySQL, stack.Options{Private: true})
		},
	} {
		go func() {
			s, err := start()
			if err != nil {
				report <- "error: " + err.Error()
				return
			}
			report <- s.Addr()
		}()
		fmt.Println(<-report)
	}
	select {}
}

func TestServer_diesWithParent(t *testing.T) {
	t.Parallel()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), orphanMaker+"=1")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var addrs []string
	for lines := bufio.NewScanner(out); len(addrs) < 3 && lines.Scan(); {
		require.NotContains(t, lines.Text(), "error")
		addrs = append(addrs, lines.Text())
	}
	require.Len(t, addrs, 3)
	for _, addr := range addrs {
		require.NoError(t, dial(addr), "up, and still up long after the goroutine that asked for it has ended")
	}

	require.NoError(t, parent.Process.Signal(syscall.SIGKILL))
	var exit *exec.ExitError
	require.ErrorAs(t, parent.Wait(), &exit)
	for _, addr := range addrs {
		assert.Eventually(t, func() bool { return dial(addr) != nil }, 5*time.Second, 20*time.Millisecond, addr)
	}

	// What they left behind is swept by whoever starts a server next.
	require.NotEmpty(t, workdirsNaming(t, addrs))
	stack.StartRedis(t)
	stack.StartSQL(t, stack.MySQL)
	assert.Empty(t, workdirsNaming(t, addrs))
}

func dial(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// workdirsNaming finds the directories whose log speaks of one of the ports.
func workdirsNaming(t *testing.T, addrs []string) (found []string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	for _, parent := range []string{os.TempDir(), filepath.Join(cache, "tierlock/mysql-root/tmp")} {
		logs, err := filepath.Glob(filepath.Join(parent, "tierlock-srv-*", "server.log"))
		require.NoError(t, err)
		for _, log := range logs {
			text, err := os.ReadFile(log)
			if errors.Is(err, os.ErrNotExist) {
				continue // another test's, just stopped
			}
			require.NoError(t, err)
			for _, addr := range addrs {
				_, port, err := net.SplitHostPort(addr)
				require.NoError(t, err)
				if _, err := strconv.Atoi(port); err == nil && strings.Contains(string(text), port) {
					found = append(found, log)
				}
			}
		}
	}
	return found
}
