// SPDX-License-Identifier: Apache-2.0

//go:build race

package soak

import "time"

const (
	// sale is how long selling a piece takes. Under the race detector the lock's
	// own code takes twenty times as long as in earnest, and so does a sale: what
	// is measured is the lock and not the detector.
	sale = 20 * time.Millisecond
	// fullStock is that of a segment in a soak.
	fullStock = 50
)
