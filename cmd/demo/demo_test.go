// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

func TestDemo_none(t *testing.T) {
	t.Parallel()
	code, r, said := play(t.Context(), t, "-lock", "none", "-duration", "1s", "-nodes", "2", "-workers", "8")
	if code != exitBroke || r.OK || r.Oversold == 0 || r.Overlaps == 0 {
		t.Errorf("exit %d, %+v\n%s", code, r, said)
	}
}

func TestDemo_tierlock(t *testing.T) {
	t.Parallel()
	code, r, said := play(t.Context(), t, "-duration", "3s", "-fault", "redis-flush")
	if code != exitHeld || !r.OK || r.Writes == 0 || r.Levels.Full == 0 || r.Faults == 0 {
		t.Errorf("exit %d, %+v\n%s", code, r, said)
	}
	if sum := r.Acquired + r.Held + r.Unavailable + r.Cancelled; sum != r.Attempts {
		t.Errorf("%d attempts, %d answers", r.Attempts, sum)
	}
}

// An interrupted run ends at once, with a verdict on what ran.
func TestDemo_interrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
	defer interrupt()
	said := &opened{open: func() { time.AfterFunc(time.Second, interrupt) }}
	var stdout bytes.Buffer
	code := demo(ctx, []string{"-lock", "redis", "-duration", "1m", "-fault", "holder-pause", "-json"}, &stdout, said)
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if code != exitHeld || !r.OK || r.Seconds > 30 || !strings.Contains(said.String(), "Interrupted") {
		t.Errorf("exit %d, %+v\n%s", code, r, said.String())
	}
}

// opened calls open when the shop says that it is.
type opened struct {
	heap
	open func()
}

func (o *opened) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("  open: ")) {
		o.open()
	}
	return o.heap.Write(p)
}

// oneNode starts a node without any lock.
func oneNode(t *testing.T) (*crew, setup) {
	t.Helper()
	db := stack.SharedSQL(t, stack.MariaDB).CreateDatabase(t)
	shop, err := openShop(t.Context(), db.AdminDSN(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer shop.close() //nolint:errcheck // only built here
	if err := shop.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := setup{Lock: lockNone, MySQL: db.DSN(), Workers: 2, Conns: 2, TTL: minTTL}
	c, err := hire(t.Context(), s, 1, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.dismiss)
	return c, s
}

// A node that dies is an error, not silence.
func TestCrew_crashed(t *testing.T) {
	t.Parallel()
	c, _ := oneNode(t)
	crashed := c.crashed(t.Context())
	if err := c.tell(doStart); err != nil {
		t.Fatal(err)
	}
	if err := c.nodes[0].cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-crashed:
		if err == nil || !strings.Contains(err.Error(), "node 0") {
			t.Errorf("crashed says %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody noticed")
	}
}

// A node whose parent is gone ends by itself.
func TestProcess_orphaned(t *testing.T) {
	t.Parallel()
	c, _ := oneNode(t)
	if err := c.tell(doStart); err != nil {
		t.Fatal(err)
	}
	if err := c.nodes[0].stdin.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.nodes[0].gone:
		if code := c.nodes[0].cmd.ProcessState.ExitCode(); code != nodeOrphaned {
			t.Errorf("exit %d", code)
		}
	case <-time.After(10 * time.Second):
		t.Error("it lives on")
	}
}

// What a node cannot set up is what the demo says.
func TestHire_failed(t *testing.T) {
	t.Parallel()
	_, s := oneNode(t)
	s.Lock = "mutex"
	if _, err := hire(t.Context(), s, 2, os.Stderr); err == nil || !strings.Contains(err.Error(), `no lock is called "mutex"`) {
		t.Errorf("hire: %v", err)
	}
}
