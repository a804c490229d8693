// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// templateFormat changes when what a template holds changes.
const templateFormat = "1"

// createAdmin makes the account that tests do their DDL with.
const createAdmin = "CREATE USER '" + adminUser + "'@'%' IDENTIFIED BY '" + adminPassword + "';\n" +
	"GRANT ALL PRIVILEGES ON *.* TO '" + adminUser + "'@'%' WITH GRANT OPTION;\n"

// cacheDir is what is worth keeping between runs.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir() // no home: made anew after a reboot
	}
	return filepath.Join(dir, "tierlock")
}

// template is an initialised data directory of this very binary, made once and then copied: initialising takes seconds,
// copying a tenth of one. Whoever comes while another process makes it waits; whoever finds it needs no lock.
func (b program) template(ctx context.Context, e Engine) (string, error) {
	parent := filepath.Join(cacheDir(), "templates")
	if b.root != "" {
		parent = filepath.Join(b.root, "var/cache/tierlock") // the binary sees nothing outside
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(templateFormat + b.path + b.version))
	path := filepath.Join(parent, fmt.Sprintf("%s-%x", strings.ToLower(e.String()), key[:6]))
	if isDir(path) {
		return path, nil
	}
	lock, err := lockPath(path+".lock", true)
	if err != nil {
		return "", err
	}
	defer lock.unlock()
	if isDir(path) {
		return path, nil
	}
	// Under another name until it is whole, so that an interrupted making leaves nothing that looks done.
	partial := path + ".partial"
	err = os.RemoveAll(partial)
	if err == nil {
		err = os.Mkdir(partial, 0o700)
	}
	if err == nil {
		err = b.initialise(ctx, e, partial)
	}
	if err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("stack: make a %s data directory: %w", e, err), os.RemoveAll(partial))
	}
	return path, nil
}

func (b program) initialise(ctx context.Context, e Engine, data string) error {
	if e == MySQL {
		return b.initMySQL(ctx, data)
	}
	return b.initMariaDB(ctx, data)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func copyTree(to, from string) error { return os.CopyFS(to, os.DirFS(from)) }
