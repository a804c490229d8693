// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// The flag bytes of a mark's value. The scripts know '!' too.
const (
	flagPlain   = '.'
	flagFlagged = '!'
)

// valueLen is the length of a mark's value: the flag byte and the token.
const valueLen = 1 + 2*len(driver.Token{})

// immortal is the time left of a foreign value that has no time to live. It
// stands until somebody deletes it or a grant overwrites it; reporting 0 would
// invite callers to ask again at once, for ever.
const immortal = maxTTL

// encodeMark returns the value of a mark as it stands in Redis.
func encodeMark(m driver.Mark) string {
	var b [valueLen]byte
	b[0] = flagPlain
	if m.Flagged {
		b[0] = flagFlagged
	}
	hex.Encode(b[1:], m.Token[:])
	return string(b[:])
}

// decodeMark describes a foreign value. A value that is no mark of ours is a
// plain mark with a token derived from its hash: the same stranger is the same
// mark at every look, which is all that callers need to look past it.
func decodeMark(value string) (token driver.Token, flagged bool) {
	if len(value) == valueLen && (value[0] == flagPlain || value[0] == flagFlagged) {
		_, err := hex.Decode(token[:], []byte(value[1:]))
		if err == nil {
			flagged = value[0] == flagFlagged
			if !token.IsZero() {
				return token, flagged
			}
		}
	}
	sum := sha256.Sum256([]byte(value))
	copy(token[:], sum[:])
	return token, flagged
}

// foreignState describes a foreign value with what PTTL answered for it.
func foreignState(value string, pttl int64) driver.MarkState {
	token, flagged := decodeMark(value)
	st := driver.MarkState{Other: token, Flagged: flagged}
	switch {
	case pttl < 0:
		st.Left = immortal
	case pttl == 0:
		st.Left = time.Millisecond // less than one, but it stands
	default:
		st.Left = time.Duration(min(pttl, int64(immortal/time.Millisecond))) * time.Millisecond
	}
	return st
}
