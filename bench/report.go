// SPDX-License-Identifier: Apache-2.0

package main

func (b *bench) writeReport() error { return nil }
