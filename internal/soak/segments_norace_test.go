// SPDX-License-Identifier: Apache-2.0

//go:build !race

package soak

import "time"

const (
	sale      = time.Millisecond
	fullStock = 200
)
