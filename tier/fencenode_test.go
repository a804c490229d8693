// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tier_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// The test binary, started again with this in its environment, is a process of
// TestFence_strictlyIncreases.
const fenceNodeEnv = "TIERLOCK_TEST_FENCE_NODE"

func init() { reexec[fenceNodeEnv] = runFenceNode }

// fenceNode is such a process, seen from the test.
type fenceNode struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	err   error // of the process, after done
}

// startFenceNode starts one. each is called with every line it prints.
func startFenceNode(settings map[string]string, each func(line string)) (*fenceNode, error) {
	n := &fenceNode{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	n.cmd.Env = append(os.Environ(), fenceNodeEnv+"=1")
	for name, value := range settings {
		n.cmd.Env = append(n.cmd.Env, fenceNodeEnv+"_"+name+"="+value)
	}
	n.cmd.Stderr = os.Stderr
	dieWithParent(n.cmd)
	var err error
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal comes when this thread ends
		err := n.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			each(lines.Text())
		}
		n.err = n.cmd.Wait()
		close(n.done)
	}()
	return n, <-started
}

func (n *fenceNode) pause()  { _ = n.cmd.Process.Signal(syscall.SIGSTOP) }
func (n *fenceNode) resume() { _ = n.cmd.Process.Signal(syscall.SIGCONT) }

func (n *fenceNode) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.stdin.Close()
	<-n.done
}

// end lets the process finish.
func (n *fenceNode) end() error {
	_ = n.stdin.Close()
	select {
	case <-n.done:
		return n.err
	case <-time.After(30 * time.Second):
		n.kill()
		return errors.New("not within 30s")
	}
}

// runFenceNode is the process: two goroutines that want the same key, until
// standard input ends. It prints a line for each step.
func runFenceNode() int {
	setting := func(name string) string { return os.Getenv(fenceNodeEnv + "_" + name) }
	filter, err := redisfast.Open(setting("redis"), redisfast.WithPrefix(setting("prefix")))
	if err != nil {
		return wrong(err)
	}
	authority, err := mysqlauth.Open(setting("dsn"), mysqlauth.WithSweepInterval(0), mysqlauth.WithTimeout(250*time.Millisecond))
	if err != nil {
		return wrong(err)
	}
	db, err := sql.Open("mysql", setting("dsn"))
	if err != nil {
		return wrong(err)
	}
	db.SetMaxOpenConns(2)
	locker, err := tier.New(filter, authority, tier.WithNamespace("fence"),
		tier.WithTTL(500*time.Millisecond), tier.WithWait(time.Second))
	if err != nil {
		return wrong(err)
	}
	seed, err := strconv.ParseUint(setting("seed"), 10, 64)
	if err != nil {
		return wrong(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var workers sync.WaitGroup
	for i := range uint64(2) {
		w := &fenceWorker{locker: locker, db: db, rand: rand.New(rand.NewPCG(seed, i))}
		workers.Go(func() {
			for ctx.Err() == nil {
				w.turn(ctx)
			}
		})
	}
	workers.Wait()
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := errors.Join(locker.Close(closing), db.Close()); err != nil {
		return wrong(fmt.Errorf("close: %w", err))
	}
	return 0
}

var printing sync.Mutex

func say(kind string) {
	printing.Lock()
	defer printing.Unlock()
	_, _ = fmt.Println(kind)
}

func wrong(err error) int {
	say("wrong " + strconv.Quote(err.Error()))
	return 1
}

type fenceWorker struct {
	locker *tier.Locker
	db     *sql.DB
	rand   *rand.Rand
}

// turn takes the key, does random things with it, and gives it back.
func (w *fenceWorker) turn(ctx context.Context) {
	acquire := w.locker.Acquire
	if w.rand.IntN(4) == 0 {
		acquire = w.locker.TryAcquire
	}
	lease, err := acquire(ctx, "k")
	switch {
	case errors.Is(err, tier.ErrHeld):
		say("held")
		time.Sleep(time.Duration(w.rand.IntN(10)) * time.Millisecond)
		return
	case errors.Is(err, tier.ErrUnavailable):
		say("unavailable")
		time.Sleep(50 * time.Millisecond)
		return
	case err != nil && ctx.Err() != nil:
		return
	case err != nil:
		wrong(fmt.Errorf("acquire: %w", err))
		return
	}
	say("acquired")
	fence := lease.Fence()
	for range w.rand.IntN(7) {
		switch w.rand.IntN(6) {
		case 0:
			time.Sleep(time.Duration(w.rand.IntN(5)) * time.Millisecond)
		case 1:
			w.answer("renewed", "renew", lease.Renew(context.Background()))
		case 2:
			w.answer("verified", "verify", lease.Verify(context.Background()))
		default: // also when the lease is known to be lost: the row must refuse
			w.write(lease)
		}
	}
	if lease.Fence() != fence {
		wrong(fmt.Errorf("the fence of a tenure went from %d to %d", fence, lease.Fence()))
	}
	w.answer("released", "release", lease.Release(context.Background()))
}

// answer says what a call came to; only lost and unknown are no fault.
func (w *fenceWorker) answer(kind, op string, err error) {
	switch {
	case err == nil:
		say(kind)
	case errors.Is(err, tier.ErrLost):
		say("lost")
	case errors.Is(err, tier.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		say("unknown")
	default:
		wrong(fmt.Errorf("%s: %w", op, err))
	}
}

// write is a guarded write that notes its place in the order of all.
func (w *fenceWorker) write(lease *tier.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		say("unknown")
		return
	}
	defer tx.Rollback()
	tenure := lease.Tenure()
	var seen uint64
	err = tx.QueryRowContext(ctx, "SELECT fence FROM latest WHERE id = 1 FOR UPDATE").Scan(&seen)
	if err == nil {
		_, err = tx.ExecContext(ctx, "INSERT INTO written (fence, token, seen) VALUES (?, ?, ?)", tenure.Fence, tenure.Token[:], seen)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE latest SET fence = ? WHERE id = 1", tenure.Fence)
	}
	if err != nil { // the server crashed, or chose us as a victim
		say("unknown")
		return
	}
	switch err := idempotency.ConfirmTx(ctx, tx, lease); {
	case errors.Is(err, idempotency.ErrStaleFence):
		say("stale")
		return
	case err != nil:
		say("unknown")
		return
	}
	if err := tx.Commit(); err != nil {
		say("unknown")
		return
	}
	say("written")
}
