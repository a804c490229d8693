// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"os/exec"
	"syscall"
)

// dieWithParent ends a child with its parent, however that ends, even while the
// child is stopped.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
