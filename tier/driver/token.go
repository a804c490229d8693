// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"crypto/rand"
	"encoding/hex"
)

// Token names one claim, never a process: whoever presents the key and the
// full 128 bits acts on exactly one acquisition. The zero Token names nothing.
type Token [16]byte

// NewToken draws a random token.
func NewToken() Token {
	var t Token
	rand.Read(t[:]) // never fails: crypto/rand aborts the program instead
	return t
}

// String returns the token as 32 hexadecimal digits.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// IsZero reports whether t names nothing.
func (t Token) IsZero() bool { return t == Token{} }

// Tenure is what a guarded write proves: one holder's turn inside a lease.
type Tenure struct {
	// Key is the key with its namespace, as it stands in the lease table.
	Key string
	// Token is the lease's token.
	Token Token
	// Fence is the number of this turn, or 0 when no authority granted it.
	Fence uint64
	// Table is the lease table, qualified by its schema and quoted, ready to
	// stand in a statement; empty for an authority that is no SQL database.
	Table string
}
