// SPDX-License-Identifier: Apache-2.0

// Package redisfast is the filter of the lock on Redis: it keeps the crowd
// away from the authority, and nothing it answers grants anything. A Redis that
// is empty, stale, failed over or gone costs time, never exclusion.
//
// [New] takes any go-redis client ([redis.Client], [redis.ClusterClient], a
// Sentinel client) and never closes it; [Open] makes one of its own.
//
// # What stands in Redis
//
// One string a key, under prefix + "mark:" + key: a flag byte ('.' plain, '!'
// flagged) and the 32 hexadecimal digits of a token, compared at full length,
// always with a time to live. One channel a key, prefix + "wake:" + key. Every
// script has one key, so that keys with braces in them are as good as others on
// a cluster. A value that is no mark of ours counts as a plain foreign mark: its
// token is derived from a hash of the value. A value without a time to live is
// reported to stand for 24 hours more.
//
// # Bounded calls
//
// go-redis watches a context's deadline only, and only with
// ContextTimeoutEnabled; cancelling a context interrupts no read. So each call
// runs in a goroutine of its own: a caller whose context ends leaves at once,
// and one whose server is silent leaves at the filter's timeout, whatever the
// client's own timeouts and retries are. What the abandoned request may have
// done is undone in the background after it has ended, and Close waits for that.
//
// go-redis prints each refused connection on standard error, whatever logger is
// given here; redis.SetLogger, which is the application's to call, changes that.
//
// Errors are [driver.Error]s with a class. None is ever contention: a refusal
// is a value.
package redisfast
