// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// What the shop does.
const (
	scenarioInventory = "inventory"
	scenarioPayment   = "payment"
	scenarioAll       = "all"
)

// options are the command line.
type options struct {
	scenario string
	lock     string
	guard    bool
	nodes    int
	workers  int
	duration time.Duration
	ttl      time.Duration
	seed     int64
	fault    string
	engine   string
	redis    string
	mysql    string
	config   string
	listen   string
	json     bool
	story    bool
}

const (
	minTTL      = 500 * time.Millisecond
	maxTTL      = 24 * time.Hour
	maxNodes    = 32
	maxWorkers  = 1000
	minDuration = time.Second
	// pauseRoom is how many TTLs a run needs for two stopped holders, one after the other.
	pauseRoom = 8
	// killRoom leaves two seconds after Redis is back, for everyone to notice.
	killRoom = 5 * time.Second
	// outageRoom is what it takes to see every rung while MySQL is out, and everyone back.
	outageRoom = 8 * time.Second
)

// parseFlags reads the command line. Usage goes to stderr; flag.ErrHelp means
// that it was asked for.
func parseFlags(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.scenario, "scenario", scenarioInventory, "what the shop does: inventory (sell from a stock), payment (move money between accounts, clients ask twice), or all")
	fs.StringVar(&o.lock, "lock", lockTierlock, "what keeps the workers apart: tierlock, redis (the filter alone), or none")
	fs.BoolVar(&o.guard, "guard", true, "with tierlock: confirm the tenure in every write's transaction")
	fs.IntVar(&o.nodes, "nodes", 3, "processes")
	fs.IntVar(&o.workers, "workers", 16, "workers in each process")
	fs.DurationVar(&o.duration, "duration", 10*time.Second, "how long the shop is open")
	fs.DurationVar(&o.ttl, "ttl", time.Second, "how long a lease lasts without renewal")
	fs.Int64Var(&o.seed, "seed", 1, "seed of the workers' choices and of the faults' victims")
	fs.StringVar(&o.fault, "fault", faultNone, "what goes wrong: "+strings.Join(faultNames, ", "))
	fs.StringVar(&o.engine, "engine", "mariadb", "which database server to start: mariadb or mysql")
	fs.StringVar(&o.redis, "redis", "", "`URL` of a Redis to use instead of starting one")
	fs.StringVar(&o.mysql, "mysql", "", "`DSN` of a MySQL or MariaDB database to use instead of starting a server;\nthe lock's tables and tables named tierlock_demo_... are made in it")
	fs.BoolVar(&o.json, "json", false, "end standard output with one JSON object, everything else goes to standard error")
	fs.BoolVar(&o.story, "story", false, "tell the whole story instead of one run: no lock, Redis alone, tierlock, with what goes wrong")
	fs.StringVar(&o.config, "config", "", "`FILE` with policies and windows instead of the demo's own; its keys are inventory/sku-0 and so on")
	fs.StringVar(&o.listen, "listen", "", "`ADDRESS` that node 0 serves on, 127.0.0.1:8080 say, instead of one that the system chooses")
	if err := fs.Parse(args); err != nil {
		o.json = asksForJSON(args)
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case given["engine"] && given["mysql"]:
		return o, errors.New("-engine says which server to start, and with -mysql none is started")
	}
	if o.story {
		for _, sc := range scenes {
			if err := sc.over(o).validate(); err != nil {
				return o, err
			}
		}
		for _, name := range []string{"scenario", "lock", "guard", "fault", "duration", "ttl", "json", "redis"} {
			if given[name] {
				return o, fmt.Errorf("-story chooses for itself: leave -%s out", name)
			}
		}
	}
	if err := o.validate(); err != nil {
		return o, err
	}
	_, err := o.readConfig()
	return o, err
}

// asksForJSON looks where parsing stopped early: whoever reads JSON is to get
// an answer in JSON.
func asksForJSON(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		return strings.HasPrefix(arg, "-") && name == "json" && value != "false"
	})
}

func (o options) validate() error {
	switch {
	case !slices.Contains([]string{scenarioInventory, scenarioPayment, scenarioAll}, o.scenario):
		return fmt.Errorf("-scenario %q is unknown: inventory, payment or all", o.scenario)
	case o.listen != "" && !isAddress(o.listen):
		return fmt.Errorf("-listen %q is no address: host:port, as in 127.0.0.1:8080", o.listen)
	case o.scenario == scenarioAll && o.workers < 2:
		return errors.New("-scenario all needs -workers 2 or more: every other one pays")
	case !slices.Contains([]string{lockTierlock, lockRedis, lockNone}, o.lock):
		return fmt.Errorf("-lock %q is unknown: tierlock, redis or none", o.lock)
	case !slices.Contains(faultNames, o.fault):
		return fmt.Errorf("-fault %q is unknown: one of %s", o.fault, strings.Join(faultNames, ", "))
	case o.config != "" && o.lock != lockTierlock:
		return fmt.Errorf("-config is tierlock's: -lock %s has none", o.lock)
	case o.engine != "mariadb" && o.engine != "mysql":
		return fmt.Errorf("-engine %q is unknown: mariadb or mysql", o.engine)
	case o.nodes < 1 || o.nodes > maxNodes:
		return fmt.Errorf("-nodes %d is not between 1 and %d", o.nodes, maxNodes)
	case o.workers < 1 || o.workers > maxWorkers:
		return fmt.Errorf("-workers %d is not between 1 and %d", o.workers, maxWorkers)
	case o.duration < minDuration:
		return fmt.Errorf("-duration %v is under %v", o.duration, minDuration)
	case o.ttl < minTTL || o.ttl > maxTTL:
		return fmt.Errorf("-ttl %v is not between %v and %v", o.ttl, minTTL, maxTTL)
	case o.redisFault() && o.redis != "":
		return fmt.Errorf("-fault %s would break a Redis that the demo did not start: leave -redis out", o.fault)
	case o.mysqlFault() && o.mysql != "":
		return fmt.Errorf("-fault %s would break a MySQL that the demo did not start: leave -mysql out", o.fault)
	case o.mysqlFault() && o.fault != faultAll && o.duration < outageRoom:
		return fmt.Errorf("-fault %s needs -duration %v or more", o.fault, outageRoom)
	case o.fault == faultAll && o.duration < allRoom(o.ttl):
		return fmt.Errorf("-fault all needs -duration %v or more with -ttl %v", allRoom(o.ttl), o.ttl)
	case o.fault == faultHolderPause && o.duration < pauseRoom*o.ttl:
		return fmt.Errorf("-fault holder-pause needs -duration %v or more with -ttl %v", pauseRoom*o.ttl, o.ttl)
	case o.fault == faultRedisKill && o.duration < killRoom:
		return fmt.Errorf("-fault redis-kill needs -duration %v or more", killRoom)
	case (o.fault == faultHolderPause || o.fault == faultAll) && o.nodes < 2:
		return fmt.Errorf("-fault %s needs -nodes 2 or more: others must sell while one is stopped", o.fault)
	}
	return nil
}

func (o options) redisFault() bool {
	return o.fault == faultRedisKill || o.fault == faultRedisFlush || o.fault == faultAll
}

func (o options) mysqlFault() bool {
	return o.fault == faultMySQLPause || o.fault == faultMySQLKill || o.fault == faultAll
}

func isAddress(s string) bool {
	_, _, err := net.SplitHostPort(s)
	return err == nil
}

func (o options) sells() bool { return o.scenario != scenarioPayment }
func (o options) pays() bool  { return o.scenario != scenarioInventory }

// guarded reports whether writes are guarded: only tierlock has something to
// guard them with.
func (o options) guarded() bool { return o.guard && o.lock == lockTierlock }

// conns bounds a node's business pool, so that all nodes together stay below
// what a server allows by default (151), with the lock's pools besides.
func (o options) conns() int { return max(2, min(o.workers, 100/o.nodes)) }
