// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

// The controls: without a guard whoever asks twice is charged twice, and without a
// lock money is made.
func TestDemo_paymentUnguarded(t *testing.T) {
	t.Parallel()
	for args, money := range map[string]bool{"-lock none": true, "-guard=false": false} {
		args := append(strings.Fields(args), "-scenario", "payment", "-duration", "2s", "-nodes", "2", "-workers", "8")
		code, r, said := play(t.Context(), t, args...)
		if code != exitBroke || r.OK || r.DoubleCharged == 0 || money && r.Money == 0 || r.Replayed != 0 {
			t.Errorf("exit %d, %+v\n%s", code, r, said)
		}
	}
}

// TestDemo_all sells and pays at once while Redis forgets.
func TestDemo_all(t *testing.T) {
	t.Parallel()
	code, r, said := play(t.Context(), t, "-scenario", "all", "-duration", "4s", "-nodes", "2", "-workers", "8", "-fault", "redis-flush")
	if code != exitHeld || !r.OK || r.DoubleCharged != 0 || r.Money != 0 || r.Replayed == 0 || r.Oversold != 0 || r.Writes == 0 {
		t.Errorf("exit %d, %+v\n%s", code, r, said)
	}
}

// The request of a client is the same wherever it is asked for.
func TestPaymentOf(t *testing.T) {
	t.Parallel()
	seen := make(map[payment]bool)
	for client := range 20 {
		for n := range 100 {
			p := paymentOf(7, client, n)
			if p != paymentOf(7, client, n) {
				t.Fatalf("client %d, request %d: another payment the second time", client, n)
			}
			if p.From == p.To || p.From < 0 || p.To < 0 || p.From >= accounts || p.To >= accounts || p.Cents < 1 {
				t.Errorf("%+v", p)
			}
			seen[p] = true
		}
	}
	if len(seen) != 2000 {
		t.Errorf("%d payments of 2000 clients' requests", len(seen))
	}
}

// TestReadme_curl runs the README's lines against a demo, as they stand there but for
// the port: the first time, again, with another body, without a key, and while the
// first is under way.
func TestReadme_curl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("curl is missing: the README's lines cannot be run")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^curl .*$`).FindAllString(string(readme), -1)
	if len(lines) != 2 || !strings.Contains(lines[0], "/payments") || !strings.Contains(lines[1], "/orders") {
		t.Fatalf("the README has the lines %q", lines)
	}
	addr, database := freePort(t), stack.SharedSQL(t, stack.MariaDB).CreateDatabase(t)
	if err := database.Exec(t.Context(), fmt.Sprintf("GRANT CREATE, DROP, ALTER, INDEX ON %s.* TO %s@'%%'", database.Name, database.User())); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
	said := &opened{open: func() {}}
	over := make(chan int, 1)
	go func() {
		var stdout bytes.Buffer
		over <- demo(ctx, []string{"-scenario", "payment", "-listen", addr, "-mysql", database.DSN(), "-nodes", "1", "-workers", "2", "-duration", "1m", "-json"}, &stdout, said)
	}()
	defer func() {
		interrupt()
		if code := <-over; code != exitHeld {
			t.Errorf("the demo ended with %d\n%s", code, said.String())
		}
	}()
	for {
		if response, err := http.Get("http://" + addr + "/healthz"); err == nil {
			_ = response.Body.Close()
			break
		}
		select {
		case code := <-over:
			over <- code
			t.Fatalf("the demo ended with %d\n%s", code, said.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	run := func(line string) (status, headers, body string) {
		t.Helper()
		shell := strings.Replace(strings.Replace(line, "127.0.0.1:8080", addr, 1), "curl ", curl+" -sS ", 1)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", shell).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
			return "", "", ""
		}
		head, body, _ := strings.Cut(string(out), "\r\n\r\n")
		fields := strings.Fields(head)
		if len(fields) < 2 {
			t.Errorf("%s: %q", shell, out)
			return "", "", ""
		}
		return fields[1], head, body
	}
	for _, line := range lines {
		status, headers, first := run(line)
		if status != "200" || strings.Contains(headers, "Idempotent-Replayed") {
			t.Errorf("%s: %s\n%s", line, headers, first)
		}
		status, headers, again := run(line)
		if status != "200" || !strings.Contains(headers, "Idempotent-Replayed: true") || again != first {
			t.Errorf("again: %s\n%s, want %s", headers, again, first)
		}
		other := regexp.MustCompile(`(cents|quantity)": \d+`).ReplaceAllString(line, `$1": 1`)
		if status, headers, body := run(other); status != "422" {
			t.Errorf("another body: %s\n%s", headers, body)
		}
		without := regexp.MustCompile(` -H 'Idempotency-Key: [^']*'`).ReplaceAllString(line, "")
		if status, headers, body := run(without); status != "400" {
			t.Errorf("no key: %s\n%s", headers, body)
		}
	}
	db, err := sql.Open("mysql", database.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // only read here
	inTheWay, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer inTheWay.Rollback()
	if _, err := inTheWay.ExecContext(t.Context(), "SELECT * FROM tierlock_demo_product FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	// One of them is under way until the row is free, and the other is told so.
	line := strings.Replace(lines[1], "order-1", "order-2", 1)
	type answer struct{ status, headers string }
	answers := make(chan answer, 2)
	for range cap(answers) {
		go func() {
			status, headers, _ := run(line)
			answers <- answer{status, headers}
		}()
	}
	if got := <-answers; got.status != "409" || !strings.Contains(got.headers, "Retry-After: ") {
		t.Errorf("in flight: %s", got.headers)
	}
	if err := inTheWay.Rollback(); err != nil {
		t.Error(err)
	}
	if got := <-answers; got.status != "200" {
		t.Errorf("the request that was in flight: %s", got.headers)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // it is free again
	return listener.Addr().String()
}
