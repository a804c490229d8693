// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// childFlag makes this program a process of a measurement.
const childFlag = "-child"

// task is what one process does in one measurement. It reads it as a line of
// JSON, answers that it is ready, and begins when it is told the times.
type task struct {
	Loop string
	Lock string

	Redis, DSN, Etcd string

	Proc    int // the number of this process
	Workers int // of this process
	Keys    int
	Round   int

	Hold, Pause, Backoff, TTL time.Duration

	Spans string // file for what was held when, or empty
	Dir   string // of a server

	Profile string // file for a CPU profile, or empty
}

func (t task) ttl() time.Duration {
	if t.TTL > 0 {
		return t.TTL
	}
	return ttl
}

// window is when a measurement counts.
type window struct{ From, Until instant }

func (w window) seconds() float64 { return w.Until.sub(w.From).Seconds() }

// measured is what one process saw.
type measured struct {
	Error string `json:",omitempty"`

	Attempts, Grants, Errors int64
	LastError                string             `json:",omitempty"`
	Latencies                map[int64]int64    `json:",omitempty"` // of grants, by microseconds
	Extra                    map[string]float64 `json:",omitempty"`
}

// loop is what a process does. begin says that it is ready, or something else
// that the one who measures wants to know, and returns the times.
type loop func(ctx context.Context, t task, begin func(said string) window) (measured, error)

// loops are what a process can do.
var loops = map[string]loop{
	"distinct":  runDistinct,
	"fresh":     runFresh,
	"hot":       runHot,
	"contended": runContended,
	"latency":   runLatency,
	"held":      runHeld,
	"open":      runOpen,
	"etcd":      runEtcd,
}

func childMain() int {
	in := bufio.NewReader(os.Stdin)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var m measured
	var t task
	err := readLine(in, &t)
	if err == nil {
		m, err = loops[t.Loop](ctx, t, func(said string) window {
			fmt.Printf("%q\n", said)
			var w window
			if err := readLine(in, &w); err != nil {
				os.Exit(exitUsage) // who measures is gone
			}
			go func() {
				_, _ = io.Copy(io.Discard, in)
				cancel()
			}()
			return w
		})
	}
	if err != nil {
		m = measured{Error: err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(m); err != nil {
		return exitUsage
	}
	return exitOK
}

func readLine(r *bufio.Reader, into any) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

// child is a process as its parent sees it.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// spawn starts a process and waits until it is ready; said is what it answered.
func spawn(ctx context.Context, t task) (c *child, said string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	c = &child{cmd: exec.CommandContext(ctx, self, childFlag)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, "", err
	}
	if err := c.tell(t); err != nil {
		return nil, "", errors.Join(err, c.stop())
	}
	var answer json.RawMessage
	if err := readLine(c.out, &answer); err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s of %s did not get ready: %w", t.Loop, t.Lock, err), c.stop())
	}
	if json.Unmarshal(answer, &said) != nil {
		var m measured
		_ = json.Unmarshal(answer, &m) // an answer of another form is said as it is
		return nil, "", errors.Join(fmt.Errorf("%s of %s: %s %s", t.Loop, t.Lock, m.Error, answer), c.stop())
	}
	return c, said, nil
}

func (c *child) tell(what any) error { return json.NewEncoder(c.in).Encode(what) }

// result waits for the process to end.
func (c *child) result() (m measured, err error) {
	err = readLine(c.out, &m)
	if err == nil && m.Error != "" {
		err = errors.New(m.Error)
	}
	return m, errors.Join(err, c.stop())
}

func (c *child) stop() error {
	_ = c.in.Close() // it ends, if it has not yet
	return c.cmd.Wait()
}

// measure runs one measurement in as many processes, and returns what each saw.
func measure(ctx context.Context, tasks []task, warm, duration time.Duration) (window, []measured, error) {
	children := make([]*child, len(tasks))
	defer func() {
		for _, c := range children {
			if c != nil {
				_ = c.cmd.Process.Kill() // it has ended, or an error is under way
			}
		}
	}()
	for i, t := range tasks {
		var err error
		if children[i], _, err = spawn(ctx, t); err != nil {
			return window{}, nil, err
		}
	}
	w := window{From: now().add(warm)}
	w.Until = w.From.add(duration)
	for _, c := range children {
		if err := c.tell(w); err != nil {
			return w, nil, err
		}
	}
	all := make([]measured, len(tasks))
	for i, c := range children {
		var err error
		if all[i], err = c.result(); err != nil {
			return w, nil, fmt.Errorf("%s of %s: %w", tasks[i].Loop, tasks[i].Lock, err)
		}
	}
	return w, all, nil
}
