// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"os/exec"
	"runtime"
)

// process is a running child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child is reaped
	err  error         // what Wait returned; read only after done
}

// startProcess starts cmd so that it dies with us. The kernel sends the death signal when the *thread* that forked ends,
// not the process, so the goroutine that starts the child keeps its thread for as long as the child lives.
func startProcess(cmd *exec.Cmd) (*process, error) {
	dieWithParent(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, and by then the child is gone
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// kill ends the child with SIGKILL, also a stopped one, and returns when it is reaped.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended already
	<-p.done
}

// alive says whether the child has not been reaped yet.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}
