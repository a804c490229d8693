// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"hash/fnv"
	"math/rand/v2"
	"strconv"
)

// Segments names n pieces of one hot key, for [Locker.AcquireAny]: stock split
// over sixteen rows is sold by sixteen holders at once. The names are key
// followed by "#" and a number from 0.
func Segments(key string, n int) []string {
	segments := make([]string, n)
	for i := range segments {
		segments[i] = key + "#" + strconv.Itoa(i)
	}
	return segments
}

// SegmentOf names the piece of n that id belongs to, the same in every process
// and release: FNV-1a of id, modulo n. n must be positive.
func SegmentOf(key, id string, n int) string {
	h := fnv.New32a()
	h.Write([]byte(id)) // never fails
	return key + "#" + strconv.FormatUint(uint64(h.Sum32())%uint64(n), 10)
}

// spread turns a list to start somewhere else for every caller.
func spread(keys []string) []string {
	start := rand.IntN(len(keys))
	turned := make([]string, 0, len(keys))
	return append(append(turned, keys[start:]...), keys[:start]...)
}
