// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// ErrNotOurs says that the server was not started here, so its process cannot be killed, paused or restarted.
var ErrNotOurs = errors.New("stack: not our server: it was given by TIERLOCK_REDIS_URL or TIERLOCK_MYSQL_DSN")

// errDown says that the server's process is not running.
var errDown = errors.New("stack: the server is not running")

// startLimit bounds a start whose context has no earlier deadline.
const startLimit = time.Minute

// Options say how to start a server. The zero value is the usual one.
type Options struct {
	// Args are added to the end of the server's command line, where they win over ours.
	Args []string
	// Private starts a server of our own even where the environment names an existing one.
	Private bool
}

// Server is a running server. Its methods may be called concurrently.
type Server struct {
	engine  Engine
	version string
	addr    string
	url     string // Redis only
	admin   string // SQL only: DSN of a user who may do everything, without a database

	// What it takes to start it again; nil and unused for a server that is not ours.
	dir     *workdir
	port    *port
	command func() *exec.Cmd
	ready   func(context.Context) (version string, err error) // nil once it answers a real query

	mu      sync.Mutex
	process *process
}

// Engine says which SQL server this is; for Redis it is the zero value.
func (s *Server) Engine() Engine { return s.engine }

// Version is the answer to SELECT VERSION(), or Redis's redis_version.
func (s *Server) Version() string { return s.version }

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// URL is the address of a Redis server as redis.ParseURL takes it.
func (s *Server) URL() string { return s.url }

// URLAt is URL with another host:port, such as a proxy's.
func (s *Server) URLAt(addr string) string {
	u, err := url.Parse(s.url)
	if err != nil {
		return "redis://" + addr // our own URLs parse; a given one was parsed before
	}
	u.Host = addr
	return u.String()
}

// Ours says whether the process was started here.
func (s *Server) Ours() bool { return s.command != nil }

// Kill ends the server as a crash does (SIGKILL) and returns when its process is gone. A server that is down stays so.
func (s *Server) Kill() error {
	if !s.Ours() {
		return ErrNotOurs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.kill()
	}
	return nil
}

// Pause freezes the server (SIGSTOP): its connections stay open, new ones are taken by the kernel, nothing answers.
// It returns when all of its threads have stopped.
func (s *Server) Pause() error {
	if err := s.signal("pause", pause); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.process.alive() && !isStopped(s.process.cmd.Process.Pid) {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// Resume ends a Pause (SIGCONT).
func (s *Server) Resume() error { return s.signal("resume", resume) }

func (s *Server) signal(verb string, send func(*os.Process) error) error {
	if !s.Ours() {
		return ErrNotOurs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || !s.process.alive() {
		return errDown
	}
	if err := send(s.process.cmd.Process); err != nil {
		return fmt.Errorf("stack: %s %s: %w", verb, s.engine, err)
	}
	return nil
}

// Restart kills the server if it runs and starts it on the same port and data. Redis keeps nothing and comes back empty.
// It returns when the server answers a query.
func (s *Server) Restart(ctx context.Context) error {
	if !s.Ours() {
		return ErrNotOurs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.kill()
	}
	return s.start(ctx)
}

// Stop ends the server and removes its data. It does nothing to a server that is not ours, and nothing the second time.
func (s *Server) Stop() error {
	if !s.Ours() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.kill() // the data goes away: nothing to flush
	}
	if s.dir == nil {
		return nil
	}
	err := s.dir.remove()
	s.port.release()
	s.dir = nil
	return err
}

// Log is the end of what the server wrote to its log.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == nil {
		return ""
	}
	return tail(s.logPath())
}

func (s *Server) logPath() string { return filepath.Join(s.dir.path, "server.log") }

// start runs the command and waits until the server answers. The caller holds mu.
func (s *Server) start(ctx context.Context) error {
	if s.dir == nil {
		return errDown
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	log, err := os.OpenFile(s.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor, and we wrote nothing
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = startProcess(cmd); err != nil {
		return err
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		version, err := s.ready(ctx)
		if err == nil && s.process.alive() {
			if s.version == "" { // set once, so that Version needs no lock; a restart runs the same binary
				s.version = version
			}
			return nil
		}
		select {
		case <-s.process.done:
			return fmt.Errorf("stack: %s ended while starting (%w); its log ends:\n%s", s.engine, errors.Join(s.process.err, err), tail(s.logPath()))
		case <-ctx.Done():
			s.process.kill()
			return fmt.Errorf("stack: %s gave no answer (%w); its log ends:\n%s", s.engine, errors.Join(ctx.Err(), err), tail(s.logPath()))
		case <-time.After(wait):
		}
	}
}

// launch starts a new server, or cleans up after one that would not start.
func (s *Server) launch(ctx context.Context) (*Server, error) {
	s.mu.Lock()
	err := s.start(ctx)
	s.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 4096
	if len(text) > most {
		text = text[len(text)-most:]
		if _, whole, ok := bytes.Cut(text, []byte("\n")); ok {
			text = whole
		}
	}
	return string(text)
}
