// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "syscall"

// apart makes a child that an interrupt from the keyboard does not reach: it is
// ours to stop. Without a parent-death signal it ends when its input does.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
