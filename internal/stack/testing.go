// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// TB is what the helpers need of a test; *testing.T and *testing.B have it.
type TB interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// shared are the servers of this process's tests, started by the first test that asks.
var shared = struct {
	mu      sync.Mutex
	servers map[Engine]*Server
}{servers: map[Engine]*Server{}}

// StartRedis starts a Redis for one test, to be killed and paused at will.
func StartRedis(tb TB, args ...string) *Server {
	tb.Helper()
	return own(tb, noSQL, Options{Args: args, Private: true})
}

// StartSQL starts a server of the engine for one test, to be killed and paused at will.
func StartSQL(tb TB, e Engine, args ...string) *Server {
	tb.Helper()
	return own(tb, e, Options{Args: args, Private: true})
}

// SharedRedis is the Redis of this process's tests. Keys are the test's own to keep apart; faults belong on a private
// server or a [Proxy].
func SharedRedis(tb TB) *Server {
	tb.Helper()
	return share(tb, noSQL)
}

// SharedSQL is the server of the engine of this process's tests; see [Server.CreateDatabase].
func SharedSQL(tb TB, e Engine) *Server {
	tb.Helper()
	return share(tb, e)
}

// CreateDatabase makes a database for one test and drops it after.
func (s *Server) CreateDatabase(tb TB) *Database {
	tb.Helper()
	d, err := s.NewDatabase(tb.Context(), "t")
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() {
		// A lease or transaction that a test left open would hold DROP up for ever; the server goes away anyway.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = d.Drop(ctx)
	})
	return d
}

// Runner is what TestMain is given.
type Runner interface{ Run() int }

// Main wraps the m of TestMain so that shared servers are stopped after the tests.
func Main(m Runner) Runner { return stopping{m} }

type stopping struct{ tests Runner }

func (s stopping) Run() int {
	code := s.tests.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for engine, server := range shared.servers {
		if err := server.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stop the shared %s: %v\n", engine, err)
			code = max(code, 1)
		}
		delete(shared.servers, engine)
	}
	return code
}

func own(tb TB, e Engine, o Options) *Server {
	tb.Helper()
	s, err := start(tb.Context(), e, o)
	if err != nil {
		missing(tb, e, err)
	}
	tb.Cleanup(func() {
		if err := s.Stop(); err != nil {
			tb.Fatalf("stop %s: %v", e, err)
		}
	})
	return s
}

func share(tb TB, e Engine) *Server {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s := shared.servers[e]; s != nil {
		return s
	}
	// Not the test's context: the server outlives the test.
	s, err := start(context.Background(), e, Options{})
	if err != nil {
		missing(tb, e, err)
	}
	shared.servers[e] = s
	return s
}

func start(ctx context.Context, e Engine, o Options) (*Server, error) {
	if e == noSQL {
		return Redis(ctx, o)
	}
	return SQL(ctx, e, o)
}

// missing ends the test: a server that is not there fails it, so that a green run has run everything. Only
// TIERLOCK_WITHOUT_MYSQL=1 lets tests of MySQL be skipped, loudly, and never under CI.
func missing(tb TB, e Engine, err error) {
	tb.Helper()
	if e == MySQL && errors.Is(err, ErrMissing) && os.Getenv("TIERLOCK_WITHOUT_MYSQL") == "1" && os.Getenv("CI") == "" {
		fmt.Fprintf(os.Stderr, "\n*** %s: NOT TESTED ON MYSQL: %v ***\n\n", tb.Name(), err)
		tb.Skipf("%v", err)
	}
	tb.Fatalf("%v", err)
}
