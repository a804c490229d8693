// SPDX-License-Identifier: Apache-2.0

package mysql_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierlock/tierlock/internal/stack"
)

// Who is not root cannot have a MySQL unpacked, and is not asked to where one is
// given or none is wanted. A cache without one stands for a machine without one.
func TestScript_withoutRoot(t *testing.T) {
	t.Parallel()
	given := func(addr string) string { return "TIERLOCK_MYSQL_DSN=u:p@tcp(" + addr + ")/" }
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	const needed = "only root on Linux"
	for name, c := range map[string]struct {
		env  []string
		says string
	}{
		"nothing given":               {nil, needed},
		"a MySQL given":               {[]string{given(stack.SharedSQL(t, stack.MySQL).Addr())}, "that of TIERLOCK_MYSQL_DSN"},
		"a MariaDB given":             {[]string{given(stack.SharedSQL(t, stack.MariaDB).Addr())}, needed},
		"given, and not there yet":    {[]string{given(nobody)}, "that of TIERLOCK_MYSQL_DSN"},
		"given by a socket":           {[]string{"TIERLOCK_MYSQL_DSN=u@unix(/run/mysqld.sock)/"}, "that of TIERLOCK_MYSQL_DSN"},
		"none wanted":                 {[]string{"TIERLOCK_WITHOUT_MYSQL=1"}, "none: "},
		"none wanted, and some given": {[]string{"TIERLOCK_WITHOUT_MYSQL=1", given(nobody)}, "none: "},
		"none wanted under CI":        {[]string{"TIERLOCK_WITHOUT_MYSQL=1", "CI=true"}, needed},
		"MariaDB given, none wanted":  {[]string{"TIERLOCK_WITHOUT_MYSQL=1", given(stack.SharedSQL(t, stack.MariaDB).Addr())}, "none: "},
		"0 is no 1":                   {[]string{"TIERLOCK_WITHOUT_MYSQL=0"}, needed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			// Nobody, on a machine whose mysqld is MariaDB's.
			for program, says := range map[string]string{"id": "1000", "mysqld": "mysqld  Ver 11.8-MariaDB"} {
				if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "bash", "../mysql.sh")
			cmd.Env = append([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "XDG_CACHE_HOME=" + t.TempDir()}, c.env...)
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "Ver ") && c.says == needed {
				return // /usr/sbin/mysqld of this machine is a MySQL
			}
			if !strings.Contains(string(out), c.says) {
				t.Errorf("it said\n%swant %q in it", out, c.says)
			}
			if failed := err != nil; failed != (c.says == needed) {
				t.Errorf("%v after\n%s", err, out)
			}
		})
	}
}
