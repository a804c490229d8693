// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// initMariaDB fills an empty data directory by feeding the system tables to `mariadbd --bootstrap`, as mariadb-install-db
// does; that script wants tools of the client package, which we would need for nothing else.
func (b program) initMariaDB(ctx context.Context, data string) error {
	var script bytes.Buffer
	script.WriteString("CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n")
	for _, name := range []string{"system_tables", "performance_tables", "system_tables_data"} {
		text, err := b.mariaDBScript(name)
		if err != nil {
			return err
		}
		script.Write(text)
	}
	script.WriteString("\nFLUSH PRIVILEGES;\n" + createAdmin)
	cmd := b.command(ctx, append(commonArgs(b.inside(data)),
		"--bootstrap", "--innodb-log-file-size=32M", "--max-allowed-packet=8M", "--log-warnings=0")...)
	cmd.Stdin = &script
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("bootstrap: %w\n%s", err, out)
	}
	return nil
}

// mariaDBScript reads one of the SQL files that come with the server; 11.x renamed them and their directory.
func (b program) mariaDBScript(name string) ([]byte, error) {
	base := filepath.Dir(filepath.Dir(b.path))
	if target, err := filepath.EvalSymlinks(b.path); err == nil {
		base = filepath.Dir(filepath.Dir(target))
	}
	for _, dir := range []string{"share/mariadb", "share/mysql", "share"} {
		for _, prefix := range []string{"mariadb_", "mysql_"} {
			text, err := os.ReadFile(filepath.Join(base, dir, prefix+name+".sql"))
			if err == nil {
				return text, nil
			}
		}
	}
	return nil, fmt.Errorf("%s.sql is not under %s/share", name, base)
}
