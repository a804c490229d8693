// SPDX-License-Identifier: Apache-2.0

// Package soak has no code, only tests: of what the lock does with many
// processes, many keys and much time. `make test` runs them with scaled counts,
// TIERLOCK_SOAK=1 with the full ones.
package soak
