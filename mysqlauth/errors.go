// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrOption is the error of a bad DSN, option or pool. It names the value,
	// unless that may hold a password.
	ErrOption = errors.New("mysqlauth: bad option")

	// ErrKey is the error of a key that cannot stand in the lease table.
	ErrKey = errors.New("mysqlauth: bad key")

	// ErrValue is the error of a time, a block or a holder out of its range.
	ErrValue = errors.New("mysqlauth: bad value")

	// ErrClosed is the error of a call after Close.
	ErrClosed = errors.New("mysqlauth: closed")

	errNoAnswer = errors.New("no answer from the server in time")
	errCut      = errors.New("closed while the request was on its way")
	errLate     = errors.New("the request reached the server too late and refused itself")
	errRaced    = errors.New("other processes made and removed the same rows all along")
	errNoFloor  = errors.New("the floor row is missing")
	errFenceMax = errors.New("the key's fence is at its maximum")
)

// LeftError is the error of a Close whose context ended before all was done.
// The keys stay held until their leases expire.
type LeftError struct {
	Keys []string // with namespace, in no order
}

func (e *LeftError) Error() string {
	const most = 10
	var b strings.Builder
	fmt.Fprintf(&b, "mysqlauth: %d keys left to expire:", len(e.Keys))
	for i, key := range e.Keys {
		if i == most {
			b.WriteString(" ...")
			break
		}
		fmt.Fprintf(&b, " %q", key)
	}
	return b.String()
}
