// SPDX-License-Identifier: Apache-2.0

package tierlockfx

import "go.uber.org/fx"

// Module provides a *tier.Locker. It wants a config.Config and a *sql.DB named
// "tierlock"; see [FilterParams], [AuthorityParams] and [LockerParams] for the rest.
var Module = fx.Module("tierlock", Filter, Authority, Locker)

var (
	// Filter provides the driver.Filter on Redis.
	Filter = fx.Provide(NewFilter)
	// Authority provides the driver.Authority on MySQL.
	Authority = fx.Provide(NewAuthority)
	// Locker provides the *tier.Locker on both, started and stopped with the app.
	Locker = fx.Provide(NewLocker)
	// Connect provides the lock's pool and a Redis client as the config says, and
	// closes them after the locker.
	Connect = fx.Module("tierlock-connect", fx.Provide(ConnectMySQL, ConnectRedis))
)
