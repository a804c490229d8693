// SPDX-License-Identifier: Apache-2.0

package mysqlauth_test

import (
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier"
)

// Keys spread over two databases, for more grants a second than one can commit. Each
// process gives the same list.
func ExampleNewSharded() {
	start := func(first, second string) (*tier.Locker, error) {
		var shards []mysqlauth.Shard
		for name, dsn := range map[string]string{"first": first, "second": second} {
			authority, err := mysqlauth.Open(dsn)
			if err != nil {
				return nil, err
			}
			shards = append(shards, mysqlauth.Shard{Name: name, Authority: authority})
		}
		authority, err := mysqlauth.NewSharded(shards...)
		if err != nil {
			return nil, err
		}
		return tier.New(nil, authority)
	}
	_ = start
}
