// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package stack

import (
	"errors"
	"os"
	"os/exec"
)

func pause(*os.Process) error  { return errors.ErrUnsupported }
func resume(*os.Process) error { return errors.ErrUnsupported }

func chroot(*exec.Cmd, string) {}

// lockFD pretends: without flock two processes at once may pick the same port, and the later one says so.
func lockFD(*os.File, bool) (bool, error) { return true, nil }
