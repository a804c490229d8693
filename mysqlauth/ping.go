// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"

	"github.com/tierlock/tierlock/tier/driver"
)

// Ping implements [driver.Authority]: it reads the server's clock and writes a
// canary row, and takes that back.
func (a *Authority) Ping(ctx context.Context) error {
	return a.detached(ctx, "ping", func(ctx context.Context) error {
		s, err := a.sessions.borrow(ctx, "ping", a.timeout) // asks for the clock
		if err != nil {
			return err
		}
		defer a.sessions.giveBackBorrowed(s)
		id := driver.NewToken()
		_, err = s.exec(a.timeout, a.tables.canaryInsert(), id[:])
		if err == nil {
			_, err = s.exec(a.timeout, a.tables.canaryDelete(), id[:])
		}
		return classify("ping", err)
	})
}
