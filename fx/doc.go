// SPDX-License-Identifier: Apache-2.0

// Package tierlockfx wires a lock into an application of go.uber.org/fx. Import it
// under its name, since its directory has another:
//
//	import tierlockfx "github.com/tierlock/tierlock/fx"
//
//	fx.New(
//		fx.Provide(func() (config.Config, error) { return config.Load("locks.yaml") }),
//		tierlockfx.Connect, // or bring *sql.DB named "tierlock" and redis.UniversalClient
//		tierlockfx.Module,
//		fx.Invoke(func(l *tier.Locker) { ... }),
//	)
//
// # What it promises
//
//   - The lock's pool is its own: a *sql.DB named "tierlock", never the one of the
//     business.
//   - At start the servers are asked whether they can be relied on. What needs a
//     person, such as a missing table, fails the start; a server that is out does
//     not, since each key's policy says what happens then.
//   - At stop the locker drains as its config says, within the time that fx gives
//     it, and the errors of all parts are joined. What [Connect] opened is closed
//     after it.
//   - Logger, registerer and the options of each part are optional, and Redis is
//     where every policy says tiers: mysql.
//
// # The parts
//
// [Module] is [Filter], [Authority] and [Locker] together, each of which can be
// replaced by a provider of the application's own. The constructors are ordinary
// functions. [Guard] provides the guard of package idempotency on the business's own
// pool.
package tierlockfx
