// SPDX-License-Identifier: Apache-2.0

package mysqlauth_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
)

// A lock on MySQL alone: without a filter every acquire asks the server.
func ExampleOpen() {
	authority, err := mysqlauth.Open("tierlock:password@tcp(127.0.0.1:3306)/tierlock", mysqlauth.WithTimeout(300*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	locker, err := tier.New(nil, authority)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locker.Close(context.Background()))
	fmt.Println(authority.Close(context.Background()))
	// Output:
	// <nil>
	// <nil>
}

// The tables are made by a user who may create them; the library's own user
// needs SELECT, INSERT, UPDATE and DELETE.
func ExampleEnsureSchema() {
	migrate := func(ctx context.Context, admin *sql.DB) error {
		return mysqlauth.EnsureSchema(ctx, admin, mysqlauth.WithTablePrefix("shop_"))
	}
	_ = migrate
}
