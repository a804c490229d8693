// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"os"
)

// lockfile is a file whose lock lasts as long as its process: what it stands for can be cleaned up by whoever gets the
// lock next, also after a SIGKILL.
type lockfile struct{ f *os.File }

// lockPath creates path if needed and locks it. Nil without an error: another process has it (only when !wait).
func lockPath(path string, wait bool) (*lockfile, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		ok, err := lockFD(f, wait)
		if err != nil || !ok {
			return nil, joinClose(err, f)
		}
		// The former owner may have removed the file between our open and our lock: then we hold the lock of nothing.
		onDisk, errDisk := os.Stat(path)
		opened, errOpen := f.Stat()
		if errDisk == nil && errOpen == nil && os.SameFile(onDisk, opened) {
			return &lockfile{f: f}, nil
		}
		_ = f.Close()
	}
}

// remove deletes the file and gives the lock up, in this order (see lockPath).
func (l *lockfile) remove() {
	_ = os.Remove(l.f.Name())
	_ = l.f.Close()
}

// unlock gives the lock up and leaves the file.
func (l *lockfile) unlock() { _ = l.f.Close() }

func joinClose(err error, f *os.File) error {
	_ = f.Close() // nothing was written
	return err
}
