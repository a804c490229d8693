// SPDX-License-Identifier: Apache-2.0

// Package tier composes a filter and an authority into one lock.
//
// What is not promised: anything when the authority forgets a committed row;
// early notice when an operator frees a key or steps the authority's clock;
// exclusion between goroutines that share one lease's context, and between
// processes on the rung local, which a policy has to ask for.
//
// What is promised (numbers as in the conformance suite, package tiertest):
//
//   - P1: at most one lease of the authority per key at any instant of its
//     clock, whatever the filter does.
//   - P2: the fence of a key strictly increases from one tenure to the next,
//     and never changes during one.
//   - P3: a guarded write by a holder that lost its lease is rejected, however
//     late it wakes up.
//   - P4: a holder learns of loss before another can be granted, while its
//     process runs and the authority's clock stays within half the margin.
//   - P5: no acquire leaks, whatever became of its caller or of a reply.
//   - P6: release and renew act on one acquisition only.
//   - P7: contention and a caller's own end move no breaker.
//   - P8: what happens when a tier is down is the key's [Policy], and shows on the
//     lease, in the log and in a metric.
//   - P9: a stale mark delays a free key by at most a second.
//   - P10: nothing hangs on a silent server.
//
// Locks are granted to leases, never to goroutines: any goroutine may release.
package tier
