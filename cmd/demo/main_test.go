// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/internal/stack"
)

// The test binary is also what the demo starts its nodes from.
func TestMain(m *testing.M) {
	redis.SetLogger(silence{})
	if os.Getenv(nodeEnv) != "" {
		os.Exit(nodeMain(os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(stack.Main(m))
}

// play runs a command line with -json and returns its exit code, the object it
// ended with, and what people would have read.
func play(ctx context.Context, t *testing.T, args ...string) (int, result, string) {
	t.Helper()
	var stdout bytes.Buffer
	var stderr heap // of the parent and of its nodes
	code := demo(ctx, append(args, "-json"), &stdout, &stderr)
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("standard output is not one JSON object: %v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	return code, r, stderr.String()
}

// heap is a buffer for several writers.
type heap struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (h *heap) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(p)
}

func (h *heap) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}
