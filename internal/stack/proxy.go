// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy stands between clients and a server. It follows the protocol, so a test can lose exactly the reply it is about,
// and it breaks the network as a whole ([Proxy.Cut], [Proxy.BlackHole], [Proxy.Delay]). TLS and compression are not followed.
type Proxy struct {
	engine Engine
	port   *port
	target *Server

	onRequest atomic.Pointer[func(Request) Action]
	onReply   atomic.Pointer[func(Request, Reply) Action]

	requests, bytes, dials atomic.Int64

	mu       sync.Mutex
	listener net.Listener // nil while cut or closed
	relays   map[*relay]struct{}
	traps    []*trap
	net      network
	number   int
	closed   bool
	running  sync.WaitGroup // the accept loop and every relay
}

// NewProxy opens a proxy in front of s. It keeps its address until Close, and s may be killed and restarted behind it.
func NewProxy(s *Server) (*Proxy, error) {
	at, err := reservePort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{engine: s.engine, port: at, target: s, relays: map[*relay]struct{}{}}
	if err := p.listen(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// StartProxy opens a proxy in front of s for one test.
func StartProxy(tb TB, s *Server) *Proxy {
	tb.Helper()
	p, err := NewProxy(s)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Fatalf("close the proxy: %v", err)
		}
	})
	return p
}

// Addr is host:port for clients; see [Database.DSNAt].
func (p *Proxy) Addr() string { return p.port.addr() }

// URL is a Redis server's address through the proxy.
func (p *Proxy) URL() string { return p.target.URLAt(p.Addr()) }

// OnRequest has f decide about every request before it is forwarded; nil ends it. f runs on the connection's goroutine
// and may block, which holds that connection only.
func (p *Proxy) OnRequest(f func(Request) Action) {
	if f == nil {
		p.onRequest.Store(nil)
		return
	}
	p.onRequest.Store(&f)
}

// OnReply has f decide about every reply before it is forwarded back; nil ends it. The server has carried the request out.
func (p *Proxy) OnReply(f func(Request, Reply) Action) {
	if f == nil {
		p.onReply.Store(nil)
		return
	}
	p.onReply.Store(&f)
}

// LoseReply does then ([Swallow], [HangUp], or an error) with the reply to the n-th request from now that match accepts,
// counted from 1 in the order of the replies. The channel gets that request when it has happened.
func (p *Proxy) LoseReply(n int, match func(Request) bool, then Action) <-chan Request {
	t := &trap{left: n, match: match, then: then, hit: make(chan Request, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t.hit
}

// Mark sets the counts of [Proxy.Requests], [Proxy.Bytes] and [Proxy.Dials] to zero.
func (p *Proxy) Mark() {
	p.requests.Store(0)
	p.bytes.Store(0)
	p.dials.Store(0)
}

// Requests counts the requests that ask for an answer, from clients since the last Mark, forwarded or not. What a client
// asks to set a connection up counts too, except for MySQL's log-in.
func (p *Proxy) Requests() int { return int(p.requests.Load()) }

// Bytes counts what clients sent since the last Mark.
func (p *Proxy) Bytes() int { return int(p.bytes.Load()) }

// Dials counts the connections taken since the last Mark.
func (p *Proxy) Dials() int { return int(p.dials.Load()) }

// Conns is the number of connections open now.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.relays)
}

// Close ends every connection and gives the address up. A hook that blocks must be let go first.
func (p *Proxy) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.Cut()
	p.running.Wait()
	p.port.release()
	return nil
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.Addr())
	for try := 0; err != nil && try < 100; try++ {
		// A listener that Cut closed lives on for a moment in a child between fork and exec.
		time.Sleep(10 * time.Millisecond)
		l, err = net.Listen("tcp", p.Addr())
	}
	if err != nil {
		return fmt.Errorf("stack: proxy: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
	p.running.Go(func() { p.accept(l) })
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // closed by Cut
		}
		p.dials.Add(1)
		server, err := net.Dial("tcp", p.target.addr)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.serve(client, server)
	}
}

func (p *Proxy) serve(client, server net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil { // cut while we were dialling
		_ = client.Close()
		_ = server.Close()
		return
	}
	p.number++
	r := newRelay(p, p.number, client, server)
	p.relays[r] = struct{}{}
	p.running.Go(func() {
		r.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.relays, r)
	})
}

// decideRequest asks the hook.
func (p *Proxy) decideRequest(m *message) Action {
	if m.answered {
		p.requests.Add(1)
	}
	if hook := p.onRequest.Load(); hook != nil {
		return (*hook)(m.Request)
	}
	return Pass
}

// decideReply asks the traps, then the hook.
func (p *Proxy) decideReply(m *message, a answer) Action {
	if t := p.sprung(m.Request); t != nil {
		t.hit <- m.Request
		return t.then
	}
	if hook := p.onReply.Load(); hook != nil {
		return (*hook)(m.Request, a.Reply)
	}
	return Pass
}

// sprung counts the request down on every trap that wants it and takes away the one it springs.
func (p *Proxy) sprung(r Request) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range p.traps {
		if !t.match(r) {
			continue
		}
		if t.left--; t.left <= 0 {
			p.traps = append(p.traps[:i:i], p.traps[i+1:]...)
			return t
		}
	}
	return nil
}
