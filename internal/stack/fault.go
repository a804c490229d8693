// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"time"
)

// network is what a proxy does to everything that passes it.
type network struct {
	requests, replies time.Duration // how much later each arrives
	hole              chan struct{} // nil: nothing vanishes; closed when the hole is
}

// Cut closes every connection and refuses new ones, as a server that died does, until [Proxy.Heal].
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for r := range p.relays {
		r.end()
	}
}

// Drop closes the connections that are open, as a proxy or a failover does, and goes on taking new ones.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.relays {
		r.end()
	}
}

// BlackHole lets everything sent in either direction vanish, also on new connections, which are still taken: no reset,
// and no news that the other side has closed. [Proxy.Heal] ends it, and with it the connections that lost something.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.net.hole == nil {
		p.net.hole = make(chan struct{})
	}
}

// Delay makes requests and replies arrive later by that much. [Proxy.Heal] ends it. What a connection sends while
// its last message waits counts from when that has arrived, so it is exact where one waits for the other.
func (p *Proxy) Delay(requests, replies time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.net.requests, p.net.replies = requests, replies
}

// Heal ends Cut, BlackHole and Delay. Hooks and traps stay.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	if p.net.hole != nil {
		for r := range p.relays {
			if r.lossy {
				r.end()
			}
		}
		close(p.net.hole)
	}
	p.net = network{}
	dark := p.listener == nil && !p.closed
	p.mu.Unlock()
	if dark {
		return p.listen()
	}
	return nil
}

// travels waits as long as the way takes and says whether the message arrives.
func (r *relay) travels(delay func(network) time.Duration) bool {
	p := r.proxy
	p.mu.Lock()
	d := delay(p.net)
	p.mu.Unlock()
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.ended:
			return false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.net.hole != nil {
		r.lossy = true
		return false
	}
	return true
}

func toServer(n network) time.Duration { return n.requests }
func toClient(n network) time.Duration { return n.replies }

// untilHealed waits for the end of a black hole: that a side has closed vanishes in it too.
func (r *relay) untilHealed() {
	r.proxy.mu.Lock()
	hole := r.proxy.net.hole
	r.proxy.mu.Unlock()
	if hole == nil {
		return
	}
	select {
	case <-hole:
	case <-r.ended:
	}
}
