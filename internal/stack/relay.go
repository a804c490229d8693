// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"io"
	"net"
	"sync"
)

// relay is one connection through a proxy, with a goroutine per direction.
type relay struct {
	proxy          *Proxy
	id             int
	client, server net.Conn
	wire           wire
	ended          chan struct{} // closed by end
	once           sync.Once

	// mu guards pending and silent. It is never held over a write, so neither direction waits for the other's peer.
	mu      sync.Mutex
	pending []*message // requests without a reply yet, oldest first
	silent  bool       // nothing goes back to the client any more

	writing sync.Mutex // the turn to write to the client; taken before mu

	lossy bool // a black hole swallowed something; guarded by proxy.mu
}

func newRelay(p *Proxy, id int, client, server net.Conn) *relay {
	r := &relay{proxy: p, id: id, client: client, server: server, ended: make(chan struct{})}
	if p.engine == noSQL {
		r.wire = &respWire{}
	} else {
		r.wire = &mysqlWire{texts: map[uint32]string{}}
	}
	return r
}

// run returns when both directions have ended.
func (r *relay) run() {
	var back sync.WaitGroup
	back.Go(r.replies)
	r.requests()
	// The client has gone. Half-closing tells the server, which may still be at work, as a client's kernel would.
	r.untilHealed()
	_ = r.server.(*net.TCPConn).CloseWrite() // dialled as TCP; fails when it has gone
	back.Wait()
}

// end closes the connection on both sides.
func (r *relay) end() {
	r.once.Do(func() {
		close(r.ended)
		_ = r.client.Close()
		_ = r.server.Close()
	})
}

// requests carries what the client sends until it stops.
func (r *relay) requests() {
	in := bufio.NewReader(&countingReader{r: r.client, count: func(n int) { r.proxy.bytes.Add(int64(n)) }})
	for {
		m, err := r.wire.readRequest(in)
		if err != nil {
			return
		}
		if m.handshake {
			if !r.forward(m) {
				return
			}
			continue
		}
		m.Conn = r.id
		act := r.proxy.decideRequest(m)
		if !r.request(m, act) {
			return
		}
		if act.verb == verbSwallow {
			_, _ = io.Copy(io.Discard, in) // nothing of a connection passes what it lost
			return
		}
	}
}

// request does what was decided about m. False ends the connection.
func (r *relay) request(m *message, a Action) bool {
	if !r.hold(a) {
		return false
	}
	switch a.verb {
	case verbPass:
		return r.forward(m)
	case verbError:
		if m.answered {
			m.canned = r.wire.encodeError(a)
			r.push(m)
			r.writing.Lock()
			r.flush()
			r.writing.Unlock()
		}
		return true
	case verbSwallow:
		r.mute()
		return true
	case verbHangUp:
		r.end()
	}
	return false
}

// forward sends m on its way. False: the server has gone. What vanishes on the way counts as sent.
func (r *relay) forward(m *message) bool {
	if !r.travels(toServer) {
		return true
	}
	if m.answered {
		r.push(m)
	}
	_, err := r.server.Write(m.Raw)
	return err == nil
}

// replies carries what the server sends until it stops, and then ends the connection.
func (r *relay) replies() {
	in := bufio.NewReader(r.server)
	for {
		a, err := r.wire.readReply(in, r.head)
		if err != nil {
			r.untilHealed()
			break
		}
		if !r.reply(a) {
			break
		}
	}
	r.end()
}

// reply does what is decided about one answer of the server. False ends the connection.
func (r *relay) reply(a answer) bool {
	if a.unasked {
		if r.travels(toClient) {
			r.writing.Lock()
			defer r.writing.Unlock()
			r.write(a.Raw)
		}
		return true
	}
	m := r.head()
	act := r.proxy.decideReply(m, a)
	if !r.hold(act) {
		return false
	}
	raw := a.Raw
	switch act.verb {
	case verbPass:
	case verbError:
		raw = r.wire.encodeError(act)
	case verbSwallow:
		r.mute()
	case verbHangUp:
		return false
	}
	arrives := r.travels(toClient)
	r.writing.Lock()
	defer r.writing.Unlock()
	r.pop()
	if arrives {
		r.write(raw)
	}
	r.flush()
	return true
}

// hold waits if the action says so. False: the connection ended meanwhile. The client's own leaving is not noticed
// here, on purpose: what it has sent is under way.
func (r *relay) hold(a Action) bool {
	if a.until == nil {
		return true
	}
	select {
	case <-a.until:
		return true
	case <-r.ended:
		return false
	}
}

func (r *relay) push(m *message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, m)
}

func (r *relay) pop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = r.pending[1:]
}

// head is the oldest request the server still has to answer.
func (r *relay) head() *message {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.pending {
		if m.canned == nil {
			return m
		}
	}
	return nil
}

func (r *relay) mute() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = true
}

// flush writes our own answers that are due. The caller has the turn to write.
func (r *relay) flush() {
	for {
		r.mu.Lock()
		var due []byte
		if len(r.pending) > 0 && r.pending[0].canned != nil {
			due = r.pending[0].canned
			r.pending = r.pending[1:]
		}
		r.mu.Unlock()
		if due == nil {
			return
		}
		r.write(due)
	}
}

// write sends to the client unless the connection was silenced. A client that has gone is no error: the server is read to its end.
func (r *relay) write(raw []byte) {
	r.mu.Lock()
	silent := r.silent
	r.mu.Unlock()
	if !silent {
		_, _ = r.client.Write(raw)
	}
}

// countingReader tells how many bytes came.
type countingReader struct {
	r     io.Reader
	count func(int)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.count(n)
	return n, err
}
