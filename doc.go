// SPDX-License-Identifier: Apache-2.0

// Package tierlock is a mutual-exclusion lock for services behind which money
// or stock moves: Redis turns the crowd away, MySQL decides who holds a key, and
// a fencing number guards the write. This page has no code; the lock is in
// package tier.
//
// # Not promised
//
//   - Anything if MySQL forgets a committed row: failover to an asynchronous
//     replica, or commits that are not flushed, which the start-up check refuses
//     unless they are asked for.
//   - That a write which does not confirm its tenure is safe from a holder that
//     was stopped and wakes up late. Only a guarded write is.
//   - That an effect happens once: a COMMIT whose reply was lost may have
//     happened.
//   - Early notice when an operator frees a key or MySQL's clock is stepped. The
//     fence holds all the same.
//   - Order between processes, and exclusion between goroutines that share one
//     lease.
//   - Exclusion between processes on the rung local, which a policy has to ask for.
//
// # Promised
//
// At most one lease of a key at any instant of MySQL's clock, whatever Redis
// does (P1). A fence that strictly increases from one tenure to the next and
// never changes during one (P2). A guarded write of a holder that lost its lease
// is rejected, however late it comes (P3). A holder learns of loss before
// another can be granted the key, while its process runs (P4). No acquire leaks,
// whatever became of its caller or of a reply (P5). Release and renewal act on
// one acquisition, never on its successor (P6). Contention is not a fault (P7).
// What happens when a tier is down shows on the lease and in the log (P8). A
// stale mark in Redis delays a free key by at most a second for those who keep
// asking (P9). Nothing hangs on a silent server (P10).
//
// docs/guarantees.md says of each why it holds, which test shows it and where
// it ends.
//
// # Map
//
//   - tier: Locker and Lease, all that a caller needs to see.
//   - redisfast: the filter on Redis.
//   - mysqlauth: the authority on MySQL and MariaDB.
//   - config: policies and everything else from a YAML file and the environment.
//   - fx: package tierlockfx, modules for go.uber.org/fx.
//   - breaker, fallback: the health of a tier, and what a policy allows without it.
//   - idempotency: guarded writes. ConfirmTx proves a tenure in the transaction
//     that writes.
//   - tier/tiertest: a locker without servers for unit tests, and the suite that
//     checks drivers by the numbers of the promises.
//   - tier/driver: the two contracts, for who writes a driver.
//   - cmd/demo: a shop that sells from several processes while things go wrong,
//     and then reads its books.
package tierlock
