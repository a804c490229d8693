// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Redis starts redis-server, or valkey-server where there is no redis-server, or uses the one of TIERLOCK_REDIS_URL.
// It persists nothing: killed and restarted, it is empty.
func Redis(ctx context.Context, o Options) (*Server, error) {
	if given := os.Getenv("TIERLOCK_REDIS_URL"); given != "" && !o.Private {
		return givenRedis(given)
	}
	binary, err := findRedis()
	if err != nil {
		return nil, err
	}
	s, err := newServer(noSQL, os.TempDir())
	if err != nil {
		return nil, err
	}
	s.url = "redis://" + s.addr + "/0"
	s.ready = func(ctx context.Context) (string, error) { return redisVersion(ctx, s.addr) }
	args := append([]string{
		"--port", s.port.String(), "--bind", "127.0.0.1", "--dir", s.dir.path,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}, o.Args...)
	s.command = func() *exec.Cmd { return exec.Command(binary, args...) }
	return s.launch(ctx)
}

// newServer reserves what every server needs: a directory and a port.
func newServer(e Engine, parent string) (*Server, error) {
	dir, err := newWorkdir(parent)
	if err != nil {
		return nil, fmt.Errorf("stack: directory for %s: %w", e, err)
	}
	p, err := reservePort()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stack: %w", err), dir.remove())
	}
	return &Server{engine: e, dir: dir, port: p, addr: p.addr()}, nil
}

func findRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: neither redis-server nor valkey-server is installed; `make services` installs one", ErrMissing)
}

func givenRedis(given string) (*Server, error) {
	u, err := url.Parse(given)
	if err != nil || u.Host == "" {
		return nil, errors.New("stack: TIERLOCK_REDIS_URL is not a redis:// URL") // its text may hold a password
	}
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), "6379")
	}
	return &Server{engine: noSQL, addr: addr, url: given, version: "given"}, nil
}

// redisVersion asks by hand: one line out, a few in, and no client library that retries behind our back. With a password
// set (Options.Args) an answer that asks for it is as good: such a server serves.
func redisVersion(ctx context.Context, addr string) (string, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // asked and answered
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprint(conn, "INFO server\r\n"); err != nil {
		return "", err
	}
	answer := bufio.NewReader(conn)
	for {
		line, err := answer.ReadString('\n')
		if err != nil {
			return "", err
		}
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return v, nil
		}
		if strings.HasPrefix(line, "-NOAUTH") {
			return "unknown: it asks for a password", nil
		}
		if strings.HasPrefix(line, "-") {
			return "", errors.New(line)
		}
	}
}
