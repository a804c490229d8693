// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// mysqlRoot is where `make mysql` unpacks a small Debian with MySQL in it: Debian's stable releases carry MariaDB only.
func mysqlRoot() string { return filepath.Join(cacheDir(), "mysql-root") }

// canChroot says whether a server can be run inside root: it is there, and we may.
func canChroot(root string) bool {
	_, err := os.Stat(filepath.Join(root, "usr/sbin/mysqld"))
	return err == nil && os.Getuid() == 0
}

// initMySQL fills an empty data directory.
func (b program) initMySQL(ctx context.Context, data string) error {
	script := data + ".sql"
	if err := os.WriteFile(script, []byte(createAdmin), 0o600); err != nil {
		return err
	}
	defer os.Remove(script) //nolint:errcheck // beside the template, and harmless
	cmd := b.command(ctx, append(commonArgs(b.inside(data)), "--initialize-insecure", "--init-file="+b.inside(script))...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initialize: %w\n%s", err, out)
	}
	// Two servers with one UUID could never replicate from each other, nor be told apart.
	return os.Remove(filepath.Join(data, "auto.cnf"))
}
