// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

const roleEnv = "TIERLOCK_SOAK_ROLE"

// roles are what the test binary does instead of testing when it is started as
// another process of a test. Files add theirs in init.
var roles = map[string]func() int{}

// process is such a process, seen from the test.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	err   error // of the process, after done
}

// startProcess starts one in a role. each is called with every line it prints,
// one after another. It dies with the test.
func startProcess(t *testing.T, role string, settings map[string]string, each func(line string)) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	for name, value := range settings {
		p.cmd.Env = append(p.cmd.Env, roleEnv+"_"+name+"="+value)
	}
	p.cmd.Stderr = os.Stderr
	dieWithParent(p.cmd)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal comes when this thread ends
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			each(lines.Text())
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.stdin.Close()
	<-p.done
}

// end closes the process's standard input, which asks it to finish, and waits.
func (p *process) end() error {
	_ = p.stdin.Close()
	select {
	case <-p.done:
		return p.err
	case <-time.After(30 * time.Second):
		p.kill()
		return errors.New("not within 30s")
	}
}

// The rest is for the process itself.

// setting is what the test gave the process under a name.
func setting(name string) string { return os.Getenv(roleEnv + "_" + name) }

// untilAsked returns a context that ends when the test wants the process to finish.
func untilAsked() (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return ctx, stop
}

var saying sync.Mutex

// say prints a line for the test.
func say(format string, args ...any) {
	saying.Lock()
	defer saying.Unlock()
	_, _ = fmt.Printf(format+"\n", args...)
}

// wrong prints what must not happen, and returns the exit code of it.
func wrong(err error) int {
	say("wrong %s", strconv.Quote(err.Error()))
	return 1
}
