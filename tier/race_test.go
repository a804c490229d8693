// SPDX-License-Identifier: Apache-2.0

//go:build race

package tier_test

// perTenure is how many allocations a hand-off takes. Under the race detector pools
// lose what they are given, now and then.
const perTenure = 3
