// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Ports come from below the ephemeral range of Linux (32768) and macOS (49152): no outgoing connection and no
// listener on port 0 can take one while its server is down between Kill and Restart.
const (
	portLow  = 20000
	portHigh = 32000
)

// port is a loopback port that no other user of this package takes until it is released.
type port struct {
	number int
	lock   *lockfile
}

func reservePort() (*port, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("tierlock-%d", os.Getuid()), "ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for range 1000 {
		n := portLow + rand.IntN(portHigh-portLow)
		lock, err := lockPath(filepath.Join(dir, strconv.Itoa(n)), false)
		if err != nil {
			return nil, fmt.Errorf("reserve a port: %w", err)
		}
		if lock == nil {
			continue
		}
		p := &port{number: n, lock: lock}
		// Asked by dialling: a listener of our own, closed again, can live on for a moment in a child between fork and exec.
		conn, err := net.DialTimeout("tcp", p.addr(), time.Second)
		if err != nil {
			return p, nil
		}
		_ = conn.Close()
		p.release() // somebody else's
	}
	return nil, errors.New("reserve a port: none free on 127.0.0.1")
}

func (p *port) addr() string   { return net.JoinHostPort("127.0.0.1", p.String()) }
func (p *port) String() string { return strconv.Itoa(p.number) }
func (p *port) release()       { p.lock.remove() }
