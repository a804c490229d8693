// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"fmt"
	"strings"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// faults is the leg of a proxy that knows bytes only.
type faults struct{ toxi *toxiproxy.Proxy }

func newFaults(target string) (*faults, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	toxi := toxiproxy.NewProxy(server, "stack", "127.0.0.1:0", target)
	if err := toxi.Start(); err != nil {
		return nil, fmt.Errorf("stack: toxiproxy: %w", err)
	}
	return &faults{toxi: toxi}, nil
}

func (f *faults) addr() string { return f.toxi.Listen }
func (f *faults) close()       { f.toxi.Stop() }

// add puts one toxic in a direction; the name holds the kind, so that adding one twice is an error of the test.
func (f *faults) add(kind, direction, attributes string) {
	config := fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%s}}`, kind, direction, attributes)
	if _, err := f.toxi.Toxics.AddToxicJson(strings.NewReader(config)); err != nil {
		panic(fmt.Sprintf("stack: toxic %s: %v", config, err)) // ours is valid, so the test asked for one twice
	}
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

// BlackHole lets everything sent in either direction vanish, also on new connections, which are still taken: no
// reset, no end. [Proxy.Heal] ends it, and with it the connections that lost bytes.
func (p *Proxy) BlackHole() {
	p.faults.add("timeout", "upstream", `"timeout": 0`)
	p.faults.add("timeout", "downstream", `"timeout": 0`)
}

// Delay makes requests and replies arrive later by that much, in whole milliseconds. [Proxy.Heal] ends it.
func (p *Proxy) Delay(requests, replies time.Duration) {
	if requests > 0 {
		p.faults.add("latency", "upstream", fmt.Sprintf(`"latency": %d`, requests.Milliseconds()))
	}
	if replies > 0 {
		p.faults.add("latency", "downstream", fmt.Sprintf(`"latency": %d`, replies.Milliseconds()))
	}
}

// Heal ends Cut, BlackHole and Delay. Hooks and traps stay.
func (p *Proxy) Heal() error {
	p.faults.toxi.Toxics.ResetToxics(context.Background())
	p.mu.Lock()
	dark := p.listener == nil && !p.closed
	p.mu.Unlock()
	if dark {
		return p.listen()
	}
	return nil
}
