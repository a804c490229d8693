// SPDX-License-Identifier: Apache-2.0

package tier

import "time"

// renewalPlan is a lease's place in the renewer; under the renewer's mutex.
type renewalPlan struct {
	at        time.Time
	index     int // in the heap, -1 when not in it
	suspended bool
}

// renewalHeap orders leases by their next renewal.
type renewalHeap []*holding

func (h renewalHeap) Len() int           { return len(h) }
func (h renewalHeap) Less(i, j int) bool { return h[i].renewing.at.Before(h[j].renewing.at) }
func (h renewalHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].renewing.index, h[j].renewing.index = i, j
}

func (h *renewalHeap) Push(x any) {
	last := x.(*holding)
	last.renewing.index = len(*h)
	*h = append(*h, last)
}

func (h *renewalHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.renewing.index = -1
	return t
}
