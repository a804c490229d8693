// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
)

// The test binary, started again with this in its environment, is a process that
// does one request in steps and stops where it is told to.
const buyerEnv = "TIERLOCK_TEST_BUYER"

func init() {
	if os.Getenv(buyerEnv) != "" {
		os.Exit(runBuyer())
	}
}

// The points where a buyer may stop, in their order.
const (
	beforeCharge = "before the charge"
	inCharged    = "after the charge, before its COMMIT"
	beforeMail   = "after COMMIT of the charge"
	afterMail    = "after the mail"
	inMailed     = "before the last COMMIT"
)

// runBuyer is the process. It says where it is, and then what came of it.
func runBuyer() int {
	setting := func(name string) string { return os.Getenv(buyerEnv + "_" + name) }
	stdin := bufio.NewReader(os.Stdin)
	at := func(point string) {
		if setting("stop") == point {
			fmt.Println("at", point)
			_, _ = stdin.ReadString('\n') // until the test says so, if it ever does
		}
	}
	call := func(c idempotency.Call, step string) ([]byte, error) {
		reply, err := http.PostForm(setting("provider"), url.Values{"request": {setting("key")}, "step": {step}, "key": {c.Key}})
		if err != nil {
			return nil, err
		}
		defer reply.Body.Close() //nolint:errcheck // it was read
		return io.ReadAll(reply.Body)
	}
	db, err := sql.Open("mysql", setting("dsn"))
	if err != nil {
		return 2
	}
	g, err := idempotency.New(db, idempotency.WithNamespace(namespace), idempotency.WithReapInterval(0), idempotency.WithAttemptTime(time.Second))
	if err != nil {
		return 2
	}
	steps := []idempotency.Step{
		{
			Name: "charged",
			Call: func(_ context.Context, c idempotency.Call) ([]byte, error) {
				at(beforeCharge)
				return call(c, "charge")
			},
			Save: func(ctx context.Context, tx *sql.Tx, _ idempotency.Call, receipt []byte) ([]byte, error) {
				_, err := sale(ctx, tx)
				at(inCharged)
				return receipt, err
			},
		},
		{
			Name: "mailed",
			Call: func(_ context.Context, c idempotency.Call) ([]byte, error) {
				at(beforeMail)
				if string(c.Before) != "charge done" {
					return nil, fmt.Errorf("the step before has returned %q", c.Before)
				}
				out, err := call(c, "mail")
				at(afterMail)
				return out, err
			},
			Save: func(ctx context.Context, tx *sql.Tx, _ idempotency.Call, out []byte) ([]byte, error) {
				_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1000 WHERE id = 2")
				at(inMailed)
				return out, err
			},
		},
	}
	result, err := g.Reserve(context.Background(), nil, buy(setting("key")), steps...)
	for errors.Is(err, idempotency.ErrInProgress) {
		time.Sleep(idempotency.RetryAfter(err))
		result, err = g.Reserve(context.Background(), nil, buy(setting("key")), steps...)
	}
	switch {
	case err == nil:
		fmt.Printf("answered %v %s\n", result.Replayed, result.Body)
	case errors.Is(err, idempotency.ErrSuperseded):
		fmt.Println("superseded")
	default:
		fmt.Println("failed", err)
	}
	return 0
}

// buyer is such a process, seen from the test.
type buyer struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  chan string
	done  chan struct{}
}

func startBuyer(t *testing.T, dsn, provider, key, stop string) *buyer {
	t.Helper()
	b := &buyer{cmd: exec.Command(os.Args[0]), said: make(chan string, 16), done: make(chan struct{})}
	b.cmd.Env = append(os.Environ(), buyerEnv+"=1")
	for name, value := range map[string]string{"dsn": dsn, "provider": provider, "key": key, "stop": stop} {
		b.cmd.Env = append(b.cmd.Env, buyerEnv+"_"+name+"="+value)
	}
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal comes when this thread ends
		err := b.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			b.said <- lines.Text()
		}
		_ = b.cmd.Wait() // it was killed, as a rule
		close(b.said)
		close(b.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kill)
	return b
}

func (b *buyer) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.stdin.Close()
	<-b.done
}

func (b *buyer) signal(s syscall.Signal) { _ = b.cmd.Process.Signal(s) }

// says is the next line, or empty when the process has ended or says nothing.
func (b *buyer) says() string {
	select {
	case line := <-b.said:
		return line
	case <-time.After(time.Minute):
		return ""
	}
}

// ledger is the provider of all buyers: it does what it is asked for once per key.
type ledger struct {
	mu    sync.Mutex
	calls map[string]map[string]int // by request and step, then by key
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	effect := r.FormValue("request") + " " + r.FormValue("step")
	if l.calls == nil {
		l.calls = make(map[string]map[string]int)
	}
	if l.calls[effect] == nil {
		l.calls[effect] = make(map[string]int)
	}
	l.calls[effect][r.FormValue("key")]++
	_, _ = io.WriteString(w, r.FormValue("step")+" done")
}

// called checks that a step was done so often, all under one key, and returns it.
func (l *ledger) called(t *testing.T, request, step string, times int) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := l.calls[request+" "+step]
	if len(keys) != 1 {
		t.Errorf("%s: the provider knows its %s by %d keys", request, step, len(keys))
	}
	for key, n := range keys {
		if n != times {
			t.Errorf("%s: %d calls for its %s, want %d", request, n, step, times)
		}
		return key
	}
	return ""
}

// onCrash runs a test for each point, for many requests at a time.
func onCrash(t *testing.T, rounds int, points []string, test func(t *testing.T, s *shop, l *ledger, provider, key, point string)) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, engine, "")
			s.guardTables(t)
			n := rounds * len(points)
			s.restock(t, n)
			s.Exec(t, "INSERT INTO stock VALUES (2, 0)")
			l := &ledger{}
			provider := httptest.NewServer(l)
			defer provider.Close()
			rows := make(chan struct{}, 8)
			t.Run("points", func(t *testing.T) {
				for i := range n {
					point := points[i%len(points)]
					t.Run(strings.ReplaceAll(point, " ", "_"), func(t *testing.T) {
						t.Parallel()
						rows <- struct{}{}
						defer func() { <-rows }()
						test(t, s, l, provider.URL, fmt.Sprint("order-", i), point)
					})
				}
			})
			s.stock(t, 0)
			if got := s.Count(t, "SELECT n FROM stock WHERE id = 2"); got != 1000*n {
				t.Errorf("the last step was kept %d times, want %d", got/1000, n)
			}
			s.completed(t, n)
		})
	}
}

// calls are how often each step is called when an attempt ends at a point and the
// next goes on.
func calls(point string) (charges, mails int) {
	switch point {
	case beforeCharge, beforeMail:
		return 1, 1
	case inCharged:
		return 2, 1
	}
	return 1, 2
}

// reached is the recovery point at a point, and what is stored there.
func reached(point string) (name, stored string) {
	if point == beforeCharge || point == inCharged {
		return "", ""
	}
	return "charged", "charge done"
}

// row checks what is stored of a request.
func (s *shop) row(t *testing.T, when, key, want string) {
	t.Helper()
	var got string
	err := s.Admin.QueryRowContext(t.Context(), `SELECT CONCAT_WS('|', state, attempts, CAST(recovery_point AS CHAR), IF(attempt IS NULL, 'nobody', 'somebody'),
		IF(in_progress_until IS NULL, 'for ever', 'for a time'), IF(completed_at IS NULL, 'open', 'ended'), COALESCE(CAST(result AS CHAR), '')) FROM idempotency WHERE request_key = ?`, []byte(key)).Scan(&got)
	if err != nil || got != want {
		t.Errorf("%s: %q, %v; want %q", when, got, err, want)
	}
}

// TestReserve_killed has a process die at every point: the next one goes on from the
// recovery point that was reached, and nothing is charged twice.
func TestReserve_killed(t *testing.T) {
	onCrash(t, scaled(1, 50), []string{beforeCharge, inCharged, beforeMail, afterMail, inMailed}, func(t *testing.T, s *shop, l *ledger, provider, key, point string) {
		first := startBuyer(t, s.business, provider, key, point)
		if said := first.says(); said != "at "+point {
			t.Fatalf("the first attempt: %q", said)
		}
		first.kill()
		name, stored := reached(point)
		s.row(t, "killed", key, "1|1|"+name+"|somebody|for a time|open|"+stored)
		if said := startBuyer(t, s.business, provider, key, "").says(); said != "answered false mail done" {
			t.Errorf("the next attempt: %q", said)
		}
		s.row(t, "gone on with", key, "2|2|charged|somebody|for ever|ended|mail done")
		charges, mails := calls(point)
		if l.called(t, key, "charge", charges) == l.called(t, key, "mail", mails) {
			t.Error("both steps have the same key")
		}
		never := idempotency.Step{Name: "charged", Call: func(context.Context, idempotency.Call) ([]byte, error) {
			t.Error("a step was done again")
			return nil, nil
		}}
		if result, err := s.newGuard(t, s.db).Reserve(t.Context(), nil, buy(key), never); err != nil || !result.Replayed || string(result.Body) != "mail done" {
			t.Errorf("a third call: %q, replayed %v: %v", result.Body, result.Replayed, err)
		}
	})
}

// TestReserve_stopped has a process stop for longer than its attempt may take, and go
// on after another has done the request: it is told so, and nothing of it remains.
func TestReserve_stopped_M5(t *testing.T) {
	// It has no transaction open there, whose rows nobody else would get.
	onCrash(t, scaled(1, 30), []string{beforeCharge, beforeMail, afterMail}, func(t *testing.T, s *shop, l *ledger, provider, key, point string) {
		first := startBuyer(t, s.business, provider, key, point)
		if said := first.says(); said != "at "+point {
			t.Fatalf("the first attempt: %q", said)
		}
		first.signal(syscall.SIGSTOP)
		if said := startBuyer(t, s.business, provider, key, "").says(); said != "answered false mail done" {
			t.Errorf("the second attempt: %q", said)
		}
		if _, err := io.WriteString(first.stdin, "\n"); err != nil {
			t.Error(err)
		}
		first.signal(syscall.SIGCONT)
		if said := first.says(); said != "superseded" {
			t.Errorf("the first attempt, resumed: %q", said)
		}
		s.row(t, "in the end", key, "2|2|charged|somebody|for ever|ended|mail done")
		charges, mails := 1, 1
		if point == beforeCharge {
			charges = 2 // the same charge
		} else {
			mails = 2
		}
		l.called(t, key, "charge", charges)
		l.called(t, key, "mail", mails)
	})
}
