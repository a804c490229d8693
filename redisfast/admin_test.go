// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"testing"
	"time"
)

func TestFilter_ForceClear(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	f := s.open(t)
	plant(t, f, "k", newMark())
	wake, stop := f.Wakeups("k")
	defer stop()
	<-wake // the confirmation
	if stands, err := f.ForceClear(t.Context(), "k"); err != nil || stands {
		t.Fatalf("stands %v, %v", stands, err)
	}
	select {
	case <-wake:
	case <-time.After(5 * time.Second):
		t.Error("nobody was woken")
	}
	if keys := s.keys(t); len(keys) != 0 {
		t.Errorf("left %v", keys)
	}

	m := flagged(newMark())
	plant(t, f, "flagged", m)
	if stands, err := f.ForceClear(t.Context(), "flagged"); err != nil || !stands {
		t.Errorf("a flagged mark: stands %v, %v", stands, err)
	}
	if v := s.value(t, "flagged"); v[1:] != m.Token.String() {
		t.Errorf("the flagged mark is %q", v)
	}
}
