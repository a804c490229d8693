// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// ErrMissing says that a server is not installed.
var ErrMissing = errors.New("stack: server not installed")

// Who may do everything on the servers started here. They listen on loopback only and hold nothing of worth.
const (
	adminUser     = "tierlock_admin"
	adminPassword = "tierlock-admin"
)

// program is a server program of known engine.
type program struct {
	path    string // as seen from inside root
	root    string // a directory to chroot into, or empty
	version string // what --version said
}

// SQL starts a server of the engine, or uses the one of TIERLOCK_MYSQL_DSN when that is of this engine.
func SQL(ctx context.Context, e Engine, o Options) (*Server, error) {
	if given := os.Getenv("TIERLOCK_MYSQL_DSN"); given != "" && !o.Private {
		if s, err := givenSQL(ctx, given); err != nil || s.engine == e {
			return s, err
		}
	}
	b, err := findSQL(ctx, e)
	if err != nil {
		return nil, err
	}
	tmpl, err := b.template(ctx, e)
	if err != nil {
		return nil, err
	}
	s, err := newServer(e, b.tempDir())
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir.path, "data")
	if err := copyTree(data, tmpl); err != nil {
		return nil, errors.Join(fmt.Errorf("stack: copy the template: %w", err), s.Stop())
	}
	s.admin = adminConfig(s.addr).FormatDSN()
	s.ready = func(ctx context.Context) (string, error) {
		version, err := sqlVersion(ctx, s.admin)
		if err == nil && engineOf(version) != e {
			err = fmt.Errorf("SELECT VERSION() says %s, which is %s", version, engineOf(version))
		}
		return version, err
	}
	args := append(serverArgs(e, b.inside(data), s.port.String()), o.Args...)
	s.command = func() *exec.Cmd {
		return b.command(context.Background(), args...) // not ctx: the server outlives its start
	}
	return s.launch(ctx)
}

// serverArgs are small where size costs start-up time, and durable where durability is what a lease rests on:
// one flush per commit on both engines, on MySQL one of the binary log too (it is on there by default).
func serverArgs(e Engine, data, port string) []string {
	args := append(commonArgs(data),
		"--port="+port, "--bind-address=127.0.0.1",
		"--socket="+filepath.Join(filepath.Dir(data), "sock"), "--pid-file="+filepath.Join(filepath.Dir(data), "pid"),
		// Without name resolution 127.0.0.1 is not "localhost", and the accounts made for it match.
		"--skip-name-resolve", "--max-connections=1000",
		"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=64M", "--performance-schema=OFF",
	)
	if e == MySQL {
		return append(args, "--sync-binlog=1", "--innodb-redo-log-capacity=64M", "--mysqlx=OFF", "--secure-file-priv=NULL")
	}
	return append(args, "--innodb-log-file-size=32M")
}

// commonArgs are shared by the making of the template and the run.
func commonArgs(data string) []string {
	args := []string{"--no-defaults", "--datadir=" + data}
	if os.Getuid() == 0 {
		args = append(args, "--user=root") // both refuse to run as root unless told
	}
	return args
}

// command runs the binary, inside its root if it has one.
func (b program) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.path, args...)
	if b.root != "" {
		chroot(cmd, b.root)
	}
	return cmd
}

// tempDir is where the binary can see temporary data.
func (b program) tempDir() string {
	if b.root != "" {
		return filepath.Join(b.root, "tmp")
	}
	return os.TempDir()
}

// inside is a path as the binary sees it.
func (b program) inside(path string) string { return strings.TrimPrefix(path, b.root) }

// askVersion runs `--version` and keeps b only if it is of the engine.
func (b program) askVersion(ctx context.Context, e Engine) (program, bool) {
	out, err := b.command(ctx, "--no-defaults", "--version").Output()
	b.version = strings.TrimSpace(string(out))
	return b, err == nil && engineOf(b.version) == e
}

// findSQL looks through the engine's places for a program that says it is of the engine.
func findSQL(ctx context.Context, e Engine) (program, error) {
	var candidates []program
	if root := mysqlRoot(); e == MySQL && canChroot(root) {
		candidates = append(candidates, program{path: "/usr/sbin/mysqld", root: root})
	}
	for _, name := range []string{"mariadbd", "mysqld", "/usr/sbin/mariadbd", "/usr/sbin/mysqld"} {
		if path, err := exec.LookPath(name); err == nil {
			candidates = append(candidates, program{path: path})
		}
	}
	for _, c := range candidates {
		if b, ok := c.askVersion(ctx, e); ok {
			return b, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return program{}, err
	}
	target := "services"
	if e == MySQL {
		target = "mysql"
	}
	return program{}, fmt.Errorf("%w: no server that calls itself %s; `make %s` brings one", ErrMissing, e, target)
}

func adminConfig(addr string) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd = "tcp", addr, adminUser, adminPassword
	return cfg
}

// sqlVersion asks the question that also tells the engine.
func sqlVersion(ctx context.Context, dsn string) (version string, err error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	cfg.Logger = &mysql.NopLogger{} // a server that is starting drops connections; that is no news
	cfg.Timeout, cfg.ReadTimeout = time.Second, 5*time.Second
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return "", err
	}
	db := sql.OpenDB(connector)
	defer db.Close() //nolint:errcheck // nothing but a question went over it
	err = db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	return version, err
}

func givenSQL(ctx context.Context, dsn string) (*Server, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("stack: TIERLOCK_MYSQL_DSN is not user:password@tcp(host:port)/") // its text may hold a password
	}
	cfg.DBName = ""
	s := &Server{addr: cfg.Addr, admin: cfg.FormatDSN()}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if s.version, err = sqlVersion(ctx, s.admin); err != nil {
		return nil, fmt.Errorf("stack: TIERLOCK_MYSQL_DSN: %w", err)
	}
	s.engine = engineOf(s.version)
	return s, nil
}
