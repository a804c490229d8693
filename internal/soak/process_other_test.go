// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package soak

import "os/exec"

// dieWithParent is left to the child here: it ends when its standard input does.
func dieWithParent(*exec.Cmd) {}
