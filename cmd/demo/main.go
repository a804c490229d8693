// SPDX-License-Identifier: Apache-2.0

// Demo is a shop that sells from several processes at once, while things go
// wrong, and then reads its books: whether the lock held shows in what was sold
// and not in what the lock says about itself.
//
// The same workers run behind tierlock, behind its Redis filter alone, and
// behind no lock at all. Run it with -h for the flags. It exits with 0 when every
// invariant held, 1 when one broke, and 2 when it could not run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	exitHeld  = 0
	exitBroke = 1
	exitSetup = 2
)

func main() {
	redis.SetLogger(silence{})
	if os.Getenv(nodeEnv) != "" {
		os.Exit(nodeMain(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one is not waited for
	os.Exit(demo(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// silence keeps go-redis from writing between the live lines: outages are what
// the demo is about, and show in the counters.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// demo runs one command line. It returns the exit code.
func demo(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitHeld
	}
	if err != nil {
		return refuse(o, err, stdout, stderr)
	}
	s := &stage{options: o, out: stdout, stderr: stderr, opened: time.Now()}
	if o.json {
		s.out = stderr
	}
	servers, err := openServers(ctx, o, s.say)
	if err != nil {
		return refuse(o, err, stdout, stderr)
	}
	defer func() {
		if err := servers.close(ctx); err != nil {
			fmt.Fprintln(stderr, "demo: stop the servers:", err)
		}
	}()
	if o.story {
		return s.tell(ctx, servers)
	}
	outcome, err := s.play(ctx, servers)
	if err != nil {
		return refuse(o, err, stdout, stderr)
	}
	findings := outcome.findings()
	narrate(s.out, outcome, findings)
	result := outcome.result(findings)
	if o.json {
		if err := result.print(stdout); err != nil {
			fmt.Fprintln(stderr, "demo:", err)
			return exitSetup
		}
	}
	if !result.OK {
		return exitBroke
	}
	return exitHeld
}

// refuse says why there is no verdict.
func refuse(o options, err error, stdout, stderr io.Writer) int {
	fmt.Fprintln(stderr, "demo:", err)
	if o.json {
		r := outcome{options: o}.result(nil)
		r.OK, r.Error = false, err.Error()
		if err := r.print(stdout); err != nil {
			fmt.Fprintln(stderr, "demo:", err)
		}
	}
	return exitSetup
}
