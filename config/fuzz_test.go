// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// FuzzParse looks for a panic, and for an error that does not say where.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../deploy/tierlock.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	for _, seed := range []string{
		"", "~", "{}", "[]", "---\n---\n", "\ufeff", "\t", "a: *a", "? a\n: b", "&a [*a]", "!!map {}", "%YAML 1.2\n---\n{}", "{a: b", "'", "\"\\x\"", "a:\n- b\n c",
		"drain: ${A}$$${B}$", "policies: [{match: a, degrade: [local]}, {match: a/**}, {match: \"[\"}]", "policies:\n- match: a\n  degrade: [fail_closed, retry]\n  ttl: 1",
		"mysql: {dsn: \"u:p@tcp(h:1)/d\", timeout: 20s}\nredis: {url: \"redis://:p@h\"}", "breaker: {ratio: nan, consecutive: 0}", "drain: 1s\r\ndrain: 2s\r\n", "namespace: |\n  a\n  b\n",
		"a: 1\u2028b: 2\u2028\u2028}", "<<: {a: b}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(string(text), "A=1s", "TIERLOCK_DEFAULTS_WAIT=2s")
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Fatalf("accepted, and then refused: %v", err)
			}
			return
		}
		lines := bytes.Count(text, []byte("\n")) + bytes.Count(text, []byte("\r")) + 1 +
			bytes.Count(text, []byte("\u2028")) + bytes.Count(text, []byte("\u2029")) + bytes.Count(text, []byte("\u0085"))
		for _, e := range all(t, err) {
			if (e.File != "locks.yaml" && e.Env == "") || e.Line < 0 || e.Line > lines || e.Reason == "" || strings.HasSuffix(e.Reason, " ") {
				t.Errorf("%#v does not say where and why, in %d lines", e, lines)
			}
		}
	})
}
