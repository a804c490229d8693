// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// span is one tenure as its holder saw it: from when Acquire had returned until
// Release was called.
type span struct {
	Key, Proc   int64
	From, Until instant
}

var errBroken = errors.New("a broken lock")

func writeSpans(path string, all [][]span) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	for _, spans := range all {
		if err := binary.Write(w, binary.LittleEndian, spans); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Flush(), f.Close())
}

func readSpans(path string) ([]span, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spans := make([]span, len(data)/binary.Size(span{}))
	if _, err := binary.Decode(data, binary.LittleEndian, spans); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return spans, nil
}

// handOver is the median of the gaps between holds of a key by two processes, in
// milliseconds. The spans are in order.
func handOver(spans []span) float64 {
	var gaps []time.Duration
	for i, s := range spans {
		if i > 0 && spans[i-1].Key == s.Key && spans[i-1].Proc != s.Proc {
			gaps = append(gaps, s.From.sub(spans[i-1].Until))
		}
	}
	if len(gaps) == 0 {
		return 0
	}
	return medianOf(gaps).Seconds() * 1000
}

// efficiency puts the spans in order, and is the share of the window in which the keys were held. Two spans
// of a key that overlap are a broken lock.
func efficiency(spans []span, w window, keys int) (float64, error) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.From, b.From)) })
	var sum float64
	for i, s := range spans {
		if i > 0 && spans[i-1].Key == s.Key && spans[i-1].Until > s.From {
			return 0, fmt.Errorf("%w: key %d was held twice for %v", errBroken, s.Key, min(s.Until, spans[i-1].Until).sub(s.From))
		}
		if from, until := max(s.From, w.From), min(s.Until, w.Until); from < until {
			sum += until.sub(from).Seconds()
		}
	}
	return sum / w.seconds() / float64(keys), nil
}
