// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"fmt"

	"github.com/tierlock/tierlock/tier"
)

func ExampleSegments() {
	for _, key := range tier.Segments("inventory/sku-1", 3) {
		fmt.Println(key)
	}
	// Output:
	// inventory/sku-1#0
	// inventory/sku-1#1
	// inventory/sku-1#2
}

// What belongs to one order has to meet in one piece: a reservation is
// cancelled where it was made, by any process and any release of the software.
func ExampleSegmentOf() {
	fmt.Println(tier.SegmentOf("inventory/sku-1", "order-1001", 16))
	fmt.Println(tier.SegmentOf("inventory/sku-1", "order-1002", 16))
	// Output:
	// inventory/sku-1#12
	// inventory/sku-1#5
}
