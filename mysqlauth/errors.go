// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
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

// withheld is an answer of the server whose text may quote what a statement
// bound: keys and holders belong into no error.
type withheld struct{ *mysql.MySQLError }

func (e withheld) Error() string {
	return fmt.Sprintf("Error %d (%s): its text is withheld, it may quote a key", e.Number, e.SQLState[:])
}

func (e withheld) Unwrap() error { return e.MySQLError }

// withhold hides the text of a server's answer that may quote a statement. Of
// errors that nobody listed nothing is known, and they stay readable: a trigger's
// own message is one.
func withhold(err error) error {
	if server, ok := errors.AsType[*mysql.MySQLError](err); ok && quoting[server.Number] {
		return withheld{server}
	}
	return err
}

var quoting = map[uint16]bool{
	1064: true, // a syntax error, near ...
	1062: true, // a duplicate entry
	1292: true, // a wrong value
	1366: true, // a wrong string
	1411: true, // a wrong value for a function
}

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
