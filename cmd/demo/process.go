// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// process is a node as its parent sees it.
type process struct {
	number   int
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	commands *json.Encoder

	ready, done      chan struct{} // closed when the node said so
	pausing, resumed chan struct{} // one value each time the node said so
	gone             chan struct{} // closed when the process has ended

	mu      sync.Mutex
	tally   tally
	rung    string
	addr    string
	metrics counters
	tenures []tenure
	err     error // why the process ended; set before gone is closed
}

// startProcess starts this very program as a node that dies with us: by its
// parent-death signal where the system has one, and anywhere when its standard
// input ends. The signal is sent when the thread that forked ends, so that
// goroutine keeps its thread.
func startProcess(s setup, stderr io.Writer) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p := &process{
		number: s.Node, cmd: exec.Command(self),
		ready: make(chan struct{}), done: make(chan struct{}), gone: make(chan struct{}),
		pausing: make(chan struct{}, 1), resumed: make(chan struct{}, 1),
	}
	p.cmd.Env = append(os.Environ(), nodeEnv+"=1")
	p.cmd.Stderr = stderr
	p.cmd.SysProcAttr = apart()
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.commands = json.NewEncoder(p.stdin)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- fmt.Errorf("start a node: %w", err)
			return
		}
		started <- nil
		heard := p.listen(stdout)
		ended := p.cmd.Wait() // only now: it closes the pipe
		p.end(heard, ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, p.commands.Encode(s)
}

// listen reads reports until the pipe ends. It returns what the node gave as
// the reason when it failed.
func (p *process) listen(stdout io.Reader) error {
	for lines := json.NewDecoder(stdout); ; {
		var r report
		if err := lines.Decode(&r); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("report: %w", err)
		}
		if r.Kind == saysFailed {
			return errors.New(r.Error)
		}
		p.mu.Lock()
		p.tally = r.Tally
		p.rung, p.addr, p.metrics = r.Rung, r.Addr, r.Metrics
		p.tenures = append(p.tenures, r.Tenures...)
		p.mu.Unlock()
		switch r.Kind {
		case saysReady:
			close(p.ready)
		case saysPausing:
			notify(p.pausing)
		case saysResumed:
			notify(p.resumed)
		case saysDone:
			close(p.done)
		}
	}
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end files how the process ended: anything but the end of a node that had
// said "done" is a fault of its own.
func (p *process) end(heard, ended error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		p.err = errors.Join(heard, ended)
	default:
		p.err = cmp.Or(heard, ended, errors.New("ended without a word"))
	}
	if p.err != nil {
		p.err = fmt.Errorf("node %d: %w", p.number, p.err)
	}
	close(p.gone)
}

func (p *process) tell(do string) error {
	if err := p.commands.Encode(command{Do: do}); err != nil {
		return fmt.Errorf("node %d: %s: %w", p.number, do, err)
	}
	return nil
}

// cont lets a stopped process go on; it does nothing to one that runs or has ended.
func (p *process) cont() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// kill ends the process whatever it does, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended already
	<-p.gone
}

// counted is what the node has reported so far.
func (p *process) counted() tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tally
}

// serves is where the node answers those who watch it.
func (p *process) serves() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// standsOn is the rung that the node has reported last.
func (p *process) standsOn() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rung
}

// failure is why the node ended, once gone is closed; nil when it was told to
// and had finished.
func (p *process) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
