// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tierlock/tierlock/fallback"
)

// front is what a node serves: to those who watch it /metrics, /healthz, and /readyz,
// which is ready while the products' policy asks the tiers; to clients, where writes
// are guarded, what [counter] takes.
type front struct {
	server *http.Server
	addr   string
}

func openFront(at string, from prometheus.Gatherer, l locker, books *ledger) (*front, error) {
	if at == "" {
		at = "127.0.0.1:0" // the system chooses a port
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if rung := l.rung(); rung != "" && rung != fallback.None.String() {
			http.Error(w, "on the rung "+rung, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	if lock, ok := l.(*tierlock); ok && lock.guard != nil {
		counter{lock, books}.register(mux)
	}
	f := &front{server: &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}, addr: listener.Addr().String()}
	go func() { _ = f.server.Serve(listener) }() // until close
	return f, nil
}

func (f *front) close() error { return f.server.Close() }
