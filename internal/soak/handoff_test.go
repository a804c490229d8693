// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/driver"
)

// register is a file in which the holder of the one key notes, for all processes
// to see, who it is and its fence.
type register struct{ file *os.File }

func openRegister(path string) (register, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	return register{file}, err
}

func (r register) read() (pid int, fence uint64, err error) {
	var b [16]byte
	_, err = r.file.ReadAt(b[:], 0)
	return int(binary.LittleEndian.Uint64(b[:])), binary.LittleEndian.Uint64(b[8:]), err
}

func (r register) write(pid int, fence uint64) error {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(pid))
	binary.LittleEndian.PutUint64(b[8:], fence)
	_, err := r.file.WriteAt(b[:], 0)
	return err
}

// hold is one tenure: nobody else who lives may be in the register, and its fence is
// higher than any before.
func (r register) hold(fence uint64) error {
	pid, last, err := r.read()
	switch {
	case err != nil:
		return err
	case pid != 0 && unix.Kill(pid, 0) == nil:
		return fmt.Errorf("fence %d was granted while process %d held fence %d", fence, pid, last)
	case fence <= last:
		return fmt.Errorf("fence %d was granted after fence %d", fence, last)
	}
	if err := r.write(os.Getpid(), fence); err != nil {
		return err
	}
	time.Sleep(100 * time.Microsecond) // for whoever else was let in
	pid, now, err := r.read()
	switch {
	case err != nil:
		return err
	case pid != os.Getpid() || now != fence:
		return fmt.Errorf("process %d came with fence %d while fence %d was held", pid, now, fence)
	}
	return r.write(0, fence)
}

func init() {
	roles["handoff"] = func() int {
		ctx, stop := untilAsked()
		defer stop()
		r, err := openRegister(setting("register"))
		if err != nil {
			return wrong(err)
		}
		l, _, err := openNode(tier.WithTTL(2*time.Second), tier.WithWait(time.Minute))
		if err != nil {
			return wrong(err)
		}
		say("ready")
		var tenures, handed atomic.Int64
		var last driver.Token // of whoever holds the key
		var workers sync.WaitGroup
		for range 16 {
			workers.Go(func() {
				for {
					lease, err := l.Acquire(ctx, "k")
					if ctx.Err() != nil {
						if err == nil {
							_ = lease.Release(context.Background())
						}
						return
					}
					if err != nil {
						wrong(err)
						return
					}
					if err := r.hold(lease.Fence()); err != nil {
						wrong(err)
						return
					}
					tenures.Add(1)
					if token := lease.Tenure().Token; token == last {
						handed.Add(1)
					} else {
						last = token
					}
					if err := lease.Release(context.Background()); err != nil { // not unknown because we are to end
						wrong(err)
						return
					}
				}
			})
		}
		workers.Wait()
		say("tenures %d %d", tenures.Load(), handed.Load())
		if err := closeNode(l); err != nil {
			return wrong(err)
		}
		return 0
	}
}

// TestHandOff_processes_P1_P2 passes one key on inside processes and between them,
// one of which is killed: the fences rise from each tenure to the next, wherever
// that is, and no two overlap.
func TestHandOff_processes_P1_P2(t *testing.T) {
	during := time.Second
	if soak {
		during = 20 * time.Second
	}
	onBothEngines(t, func(t *testing.T, s *tiers.Tiers) {
		path := filepath.Join(t.TempDir(), "register")
		r, err := openRegister(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.file.Close() }()
		noError(t, r.write(0, 0))
		ready := make(chan struct{}, 3)
		heard := newSpans()
		var mu sync.Mutex
		var told []string
		start := func(node int) *process {
			p := startProcess(t, "handoff", nodeSettings(s, node, map[string]string{"register": path}), func(line string) {
				heard.hear(line)
				switch kind, rest, _ := strings.Cut(line, " "); kind {
				case "ready":
					ready <- struct{}{}
				case "tenures":
					mu.Lock()
					told = append(told, rest)
					mu.Unlock()
				}
			})
			select {
			case <-ready:
			case <-time.After(20 * time.Second):
				t.Fatal("a process is not ready")
			}
			return p
		}
		first, second := start(0), start(1)
		time.Sleep(during)
		first.kill()
		_, atKill, err := r.read()
		noError(t, err)
		third := start(2)
		time.Sleep(during + 2*time.Second) // a TTL, when it was killed as the holder
		for _, p := range []*process{second, third} {
			if err := p.end(); err != nil {
				t.Error(err)
			}
		}
		heard.check(t)
		_, last, err := r.read()
		noError(t, err)
		if last <= atKill {
			t.Errorf("fence %d, and %d when the first process was killed: nobody went on", last, atKill)
		}
		if row := s.Count(t, "SELECT COUNT(*) FROM lease WHERE fence >= "+fmt.Sprint(last)); row != 1 {
			t.Errorf("fence %d is above that of the row", last)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(told) != 2 {
			t.Fatalf("told: %q", told)
		}
		for _, line := range told {
			var tenures, handed int
			if _, err := fmt.Sscan(line, &tenures, &handed); err != nil || handed == 0 || tenures-handed < 2 {
				t.Errorf("%d tenures, %d of them handed on, %v: the test tests nothing", tenures, handed, err)
			}
			t.Logf("%d tenures, %d of them handed on", tenures, handed)
		}
	})
}
