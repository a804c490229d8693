// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"strings"
)

// Engine is the kind of a SQL server.
type Engine int

// The engines. The zero value is what a Redis [Server] answers to [Server.Engine].
const (
	noSQL Engine = iota
	MariaDB
	MySQL
)

// Engines lists the SQL engines, for tests that run over both.
func Engines() []Engine { return []Engine{MariaDB, MySQL} }

// String names the engine as its makers do.
func (e Engine) String() string {
	switch e {
	case MariaDB:
		return "MariaDB"
	case MySQL:
		return "MySQL"
	case noSQL:
		return "Redis"
	}
	return fmt.Sprintf("Engine(%d)", int(e))
}

// engineOf reads the engine out of what SELECT VERSION() or `--version` says. The name of the binary says nothing:
// Debian's mysqld is MariaDB.
func engineOf(version string) Engine {
	if strings.Contains(version, "MariaDB") {
		return MariaDB
	}
	return MySQL
}
