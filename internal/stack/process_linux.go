// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setpgid = true // a Ctrl-C is for us, who stop them when we are done
}

// isStopped says whether every thread of a process has stopped. SIGSTOP goes to one of them, and the others run on until
// that one has been scheduled.
func isStopped(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the name, which is in parentheses and may hold anything.
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if len(state) == 0 || state[0] != 'T' {
			return false
		}
	}
	return true
}
