// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"
	"time"
)

// Every scene is a command line that the demo takes, and all of them together
// leave time for the servers within a minute.
func TestScenes(t *testing.T) {
	t.Parallel()
	o, err := parseFlags([]string{"-story"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var total time.Duration
	for _, sc := range scenes {
		if err := sc.over(o).validate(); err != nil {
			t.Errorf("%s %v", sc.title, err)
		}
		total += sc.duration
	}
	if total > 40*time.Second {
		t.Errorf("the story takes %v", total)
	}
}
