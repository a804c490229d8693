// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParseFlags_defaults(t *testing.T) {
	t.Parallel()
	o, err := parseFlags(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := options{
		scenario: "inventory", lock: "tierlock", guard: true, nodes: 3, workers: 16,
		duration: 10 * time.Second, ttl: time.Second, seed: 1, fault: "none", engine: "mariadb",
	}
	if o != want {
		t.Errorf("defaults are %+v, want %+v", o, want)
	}
}

func TestParseFlags_refused(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"-scenario all -workers 1":            "-workers 2 or more",
		"-scenario shop":                      `"shop" is unknown`,
		"-lock mutex":                         `"mutex" is unknown`,
		"-fault fire":                         `"fire" is unknown`,
		"-config no.yaml":                     "no.yaml",
		"-config flags_test.go":               "flags_test.go:",
		"-config demo.yaml -lock none":        "-lock none has none",
		"-listen 8080":                        "is no address",
		"-engine postgres":                    `"postgres" is unknown`,
		"-engine mysql -mysql u@tcp(h:1)/d":   "none is started",
		"-nodes 0":                            "-nodes 0",
		"-workers -1":                         "-workers -1",
		"-duration 10ms":                      "-duration 10ms",
		"-ttl 10ms":                           "-ttl 10ms",
		"-ttl 25h":                            "-ttl 25h",
		"-fault redis-flush -redis redis://h": "did not start",
		"-fault redis-kill -redis redis://h":  "did not start",
		"-fault holder-pause -duration 5s":    "-duration 8s or more",
		"-fault mysql-pause -duration 5s":     "-duration 8s or more",
		"-fault mysql-kill -mysql u@tcp(h)/d": "did not start",
		"-fault all -duration 7s":             "-duration 8s or more with -ttl 1s",
		"-fault all -nodes 1 -duration 30s":   "-nodes 2 or more",
		"-fault redis-kill -duration 4s":      "-duration 5s or more",
		"-fault holder-pause -nodes 1":        "-nodes 2 or more",
		"-story -lock none":                   "leave -lock out",
		"-story -scenario payment":            "leave -scenario out",
		"-story -nodes 1":                     "-nodes 2 or more",
		"-story -json":                        "leave -json out",
		"-nodes many":                         "invalid value",
		"now":                                 `unexpected argument "now"`,
	} {
		var stdout, stderr bytes.Buffer
		// -json anywhere on the line: the answer is JSON all the same.
		code := demo(t.Context(), append([]string{"-json"}, strings.Fields(args)...), &stdout, &stderr)
		var r result
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			t.Errorf("%s: %v in %q", args, err, stdout.String())
			continue
		}
		if code != exitSetup || r.OK || !strings.Contains(r.Error, says) {
			t.Errorf("%s: exit %d, ok %t, error %q; want 2 and %q", args, code, r.OK, r.Error, says)
		}
	}
}

func TestParseFlags_help(t *testing.T) {
	t.Parallel()
	var usage bytes.Buffer
	if _, err := parseFlags([]string{"-h"}, &usage); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
	if !strings.Contains(usage.String(), "-fault") {
		t.Errorf("-h printed %q", usage.String())
	}
	if code := demo(t.Context(), []string{"-h"}, io.Discard, io.Discard); code != exitHeld {
		t.Errorf("-h: exit %d", code)
	}
}

func TestAsksForJSON(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"-bad -json": true, "-bad --json": true, "-bad -json=true": true,
		"-bad": false, "-bad -json=false": false, "-bad json": false, "-bad -jsonx": false,
	} {
		if got := asksForJSON(strings.Fields(args)); got != want {
			t.Errorf("%s: %t", args, got)
		}
	}
}

func TestOptions_guarded(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"": true, "-guard=false": false, "-lock none": false, "-lock redis -guard": false,
	} {
		o, err := parseFlags(strings.Fields(args), io.Discard)
		if err != nil || o.guarded() != want {
			t.Errorf("%q: guarded %t, %v", args, o.guarded(), err)
		}
	}
}
