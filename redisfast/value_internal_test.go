// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

func TestForeignState_left(t *testing.T) {
	t.Parallel()
	value := encodeMark(driver.Mark{Token: driver.NewToken()})
	for pttl, left := range map[int64]time.Duration{
		-1:      immortal, // no time to live
		0:       time.Millisecond,
		1:       time.Millisecond,
		1500:    1500 * time.Millisecond,
		1 << 62: immortal, // no overflow
	} {
		if st := foreignState(value, pttl); st.Left != left {
			t.Errorf("PTTL %d: left %v, want %v", pttl, st.Left, left)
		}
	}
}

// Whatever stands in Redis is a foreign mark with a token; what encodeMark made
// comes back as it was.
func FuzzDecodeMark(f *testing.F) {
	f.Add("")
	f.Add("!" + strings.Repeat("0", 32))
	f.Add("." + strings.Repeat("F", 32))
	f.Add(encodeMark(driver.Mark{Token: driver.NewToken(), Flagged: true}))
	f.Fuzz(func(t *testing.T, value string) {
		token, flagged := decodeMark(value)
		if token.IsZero() {
			t.Fatalf("%q names nothing", value)
		}
		if flagged && (len(value) != valueLen || value[0] != '!') {
			t.Fatalf("%q is flagged", value)
		}
		again, flag := decodeMark(encodeMark(driver.Mark{Token: token, Flagged: flagged}))
		if again != token || flag != flagged {
			t.Fatalf("%q: %v %v became %v %v", value, token, flagged, again, flag)
		}
	})
}
