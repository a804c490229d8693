// SPDX-License-Identifier: Apache-2.0

//go:build !race

package tier_test

// perTenure is how many allocations a hand-off takes.
const perTenure = 2
