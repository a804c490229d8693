// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

const workdirPrefix = "tierlock-srv-"

// workdir is the temporary directory of one server, locked beside it while its owner lives.
type workdir struct {
	path string
	lock *lockfile
}

// newWorkdir makes a directory in parent, after removing those whose owners were killed.
func newWorkdir(parent string) (*workdir, error) {
	sweepWorkdirs(parent)
	for {
		path := filepath.Join(parent, fmt.Sprintf("%s%08x", workdirPrefix, rand.Uint32()))
		lock, err := lockPath(path+".lock", false)
		if err != nil {
			return nil, err
		}
		if lock == nil {
			continue
		}
		err = os.Mkdir(path, 0o700)
		if err == nil {
			return &workdir{path: path, lock: lock}, nil
		}
		lock.unlock()
		if !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
}

func (w *workdir) remove() error {
	err := os.RemoveAll(w.path)
	w.lock.remove()
	return err
}

// sweepWorkdirs does what it can: a directory of another user is not ours to remove.
func sweepWorkdirs(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, workdirPrefix+"*.lock"))
	for _, path := range locks {
		if lock, err := lockPath(path, false); err == nil && lock != nil {
			_ = (&workdir{path: strings.TrimSuffix(path, ".lock"), lock: lock}).remove()
		}
	}
}
