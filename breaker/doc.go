// SPDX-License-Identifier: Apache-2.0

// Package breaker turns sony/gobreaker into the health of one tier: what is
// known about it from the statements that were executed, and from a probe of
// its own while it does not serve.
//
// # What it does not do
//
// It refuses nothing. Whoever is about to ask the tier looks at [Health.State]
// and decides by the policy of the key; renewals, releases and settlements of
// what is held look at nothing and only report, since refusing them would lose
// what the tier may still keep.
//
// A caller's acquire is never the probe. While the tier is not closed a
// goroutine of Health asks, and its answer alone closes: a success that is
// reported meanwhile may be a renewal, and a tier that renews does not
// necessarily grant. Nor does such a success bring the next probe forward: a
// tier that half works would open and close as fast as its traffic goes.
//
// It never looks at an error of a server, only at its [driver.Class].
//
// # What moves it
//
//	success     nil, contention: the tier answered, and the answer was no
//	nothing     the caller's own doing: its context ended
//	failure     everything else, an outcome that nobody knows included
//
// [Partial] opens on failures in a row ([Settings.Consecutive]). [Global] opens
// when no success was reported for [Settings.GlobalAfter] of an outage, or when
// most calls fail: a [Settings.Ratio] of at least [Settings.MinCalls], counted
// since the first failure and spread over at least [Settings.MinSpan]. Healthy
// traffic before the first failure is not counted, so that an hour of it delays
// nothing; and a failure is forgotten once as many calls have succeeded, or once
// nothing was counted for a quarter of the span, so that an old one does not
// start the clock of the next outage. A probe that is answered closes both.
//
// # What can be relied on
//
// Report and State never wait for a probe, for a listener or for the network. A
// probe that hangs, panics or ends its goroutine is a failed probe, and is
// followed by another; only when several have ignored the end of their context
// is none started until one of them returns. Listeners are told of every change in its order, outside
// all locks, and may call anything.
package breaker
