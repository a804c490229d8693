// SPDX-License-Identifier: Apache-2.0

package main

import "syscall"

// apart makes a child that dies with us, and that an interrupt from the
// keyboard does not reach: it is ours to stop.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
