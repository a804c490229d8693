// SPDX-License-Identifier: Apache-2.0

// Package mysqlauth is the authority on MySQL and MariaDB: it decides who
// holds a key, and numbers each grant with a fence that never goes back.
//
// It does not promise anything if the server forgets a committed row: failover
// to an asynchronous replica, or a commit that is not flushed, which
// [Authority.Check] refuses unless it is asked for with
// [WithUnsafeDurability].
//
// One row per key is all there is. Its token names the claim that holds it,
// NULL is free, and all times in it are the server's. Callers queue in a lane
// (claims, renewals, releases and looks have one each), and what queued while
// the last statement ran goes with the next: callers share a statement, never
// a transaction. Every claim says until when the server may execute it, so
// that one which is late refuses itself; one whose reply was lost is undone by
// the settler before anybody could wait a lease's time for it.
//
// The file statement.go has every statement with the rule it keeps.
package mysqlauth
