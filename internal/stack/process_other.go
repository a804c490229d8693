// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package stack

import "os/exec"

// dieWithParent does nothing where the kernel has no death signal: there a killed test leaves its servers behind.
func dieWithParent(*exec.Cmd) {}

// isStopped cannot be asked here.
func isStopped(int) bool { return true }
