// SPDX-License-Identifier: Apache-2.0

// Command bench runs tierlock beside other locks, all on the same private
// servers in one run, their runs interleaved. It prints a JSON line for each
// measurement and, last, the ratios.
//
//	go -C bench run . -case distinct,hot -lock tierlock,redislock
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
)

// config is what the command line asks for.
type config struct {
	cases    []string
	locks    []string // none: those of each case
	engine   stack.Engine
	workers  int // 0: those of each case
	duration time.Duration
	rounds   int
	json     bool
	report   string // directory for bench.md and its picture, or empty
	profile  string // directory for CPU profiles, or empty
}

const (
	exitOK = iota
	exitBroken
	exitUsage
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == childFlag {
		os.Exit(childMain())
	}
	os.Exit(parentMain())
}

func parentMain() int {
	cfg, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{config: cfg, out: os.Stdout, progress: os.Stderr}
	if cfg.profile != "" { // now, not after a minute of measuring
		err = os.MkdirAll(cfg.profile, 0o755)
	}
	if err == nil {
		err = b.run(ctx)
	}
	switch {
	case errors.Is(err, errBroken):
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitBroken
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitUsage
	}
	return exitOK
}

func parse(args []string) (config, error) {
	var c config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := flags.String("case", "all", "comma-separated list of "+strings.Join(caseNames(), ", ")+", or all")
	locks := flags.String("lock", "", "comma-separated list of "+strings.Join(lockNames(), ", ")+" (default those of the case)")
	engine := flags.String("engine", "mariadb", "mariadb or mysql")
	flags.IntVar(&c.workers, "workers", 0, "workers in all (default those of the case)")
	flags.DurationVar(&c.duration, "duration", 3*time.Second, "of one measurement")
	flags.IntVar(&c.rounds, "rounds", 5, "measurements of each lock; the median counts")
	flags.BoolVar(&c.json, "json", false, "no table at the end, JSON lines only")
	flags.StringVar(&c.report, "report", "", "directory to write bench.md and bench.svg to")
	flags.StringVar(&c.profile, "profile", "", "directory to write a CPU profile of every process to")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch *engine {
	case "mariadb":
		c.engine = stack.MariaDB
	case "mysql":
		c.engine = stack.MySQL
	default:
		return c, fmt.Errorf("-engine %q: want mariadb or mysql", *engine)
	}
	if c.rounds < 1 || c.duration < 100*time.Millisecond || c.workers < 0 {
		return c, errors.New("-rounds must be at least 1, -duration at least 100ms, -workers not negative")
	}
	var err error
	if *names == "all" {
		c.cases = caseNames()
	} else if c.cases, err = subset("-case", *names, caseNames()); err != nil {
		return c, err
	}
	if *locks != "" {
		if c.locks, err = subset("-lock", *locks, lockNames()); err != nil {
			return c, err
		}
	}
	return c, nil
}

// subset splits a list and refuses names that are not among those known.
func subset(flag, list string, known []string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		ok := false
		for _, k := range known {
			ok = ok || k == name
		}
		if !ok {
			return nil, fmt.Errorf("%s %q: want some of %s", flag, name, strings.Join(known, ", "))
		}
		names = append(names, name)
	}
	return names, nil
}
