// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// onRung is a lock whose policy stands on a rung.
type onRung struct {
	noLock
	name *string
}

func (l onRung) rung() string { return *l.name }

func TestFront(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "tierlock_test_total", Help: "Of this test."})
	registry.MustRegister(counter)
	rung := "none"
	f, err := openFront("", registry, onRung{name: &rung}, &ledger{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, rung string
		code       int
		says       string
	}{
		{"/metrics", "none", http.StatusOK, "tierlock_test_total 0"},
		{"/healthz", "local", http.StatusOK, "alive"},
		{"/readyz", "none", http.StatusOK, "ready"},
		{"/readyz", "", http.StatusOK, "ready"},
		{"/readyz", "fail_closed", http.StatusServiceUnavailable, "fail_closed"},
		{"/", "none", http.StatusNotFound, ""},
	} {
		rung = c.rung
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + f.addr + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		if response.StatusCode != c.code || !strings.Contains(string(body), c.says) {
			t.Errorf("%s on the rung %q: %d %q, want %d and %q", c.path, c.rung, response.StatusCode, body, c.code, c.says)
		}
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
}

func TestReadCounters(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	acquires := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tierlock_acquire_total", Help: "As the lock's."}, []string{"policy", "level", "outcome"})
	registry.MustRegister(acquires)
	for _, policy := range []string{"a", "b"} {
		acquires.WithLabelValues(policy, "full", "granted").Add(2)
		acquires.WithLabelValues(policy, "local", "granted").Add(1)
		acquires.WithLabelValues(policy, "none", "held").Add(3)
		acquires.WithLabelValues(policy, "none", "unavailable").Add(4)
		acquires.WithLabelValues(policy, "none", "cancelled").Add(5)
	}
	got, err := readCounters(registry)
	want := counters{Acquired: 6, Held: 6, Unavailable: 8, Cancelled: 10, Levels: levels{Full: 4, Local: 2}}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	acquires.WithLabelValues("a", "none", "error").Add(1)
	if _, err := readCounters(registry); err == nil {
		t.Error("an outcome that the demo does not count is no error")
	}
}
