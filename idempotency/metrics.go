// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome of a request, as a label.
type outcome uint8

const (
	outcomeFirst outcome = iota
	outcomeReplayed
	outcomeInProgress
	outcomeMismatch
	outcomeSuperseded
	outcomeStale
	outcomeFinal
	outcomeInvalid
	outcomeFailed
)

var outcomes = [...]string{"first", "replayed", "in_progress", "mismatch", "superseded", "stale_fence", "final", "invalid", "failed"}

// metrics count nothing when nil.
type metrics struct {
	requests [len(outcomes)]prometheus.Counter
	rejected prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tierlock_idempotency_total",
		Help: "Guarded requests, by what came of them.",
	}, []string{"outcome"})
	rejected := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tierlock_fence_rejected_total",
		Help: "Guarded writes that were refused because their tenure was over.",
	})
	var known prometheus.AlreadyRegisteredError
	if err := r.Register(requests); errors.As(err, &known) {
		requests = known.ExistingCollector.(*prometheus.CounterVec)
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOption, err)
	}
	if err := r.Register(rejected); errors.As(err, &known) {
		rejected = known.ExistingCollector.(prometheus.Counter)
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOption, err)
	}
	m := &metrics{rejected: rejected}
	for i, name := range outcomes {
		m.requests[i] = requests.WithLabelValues(name)
	}
	return m, nil
}

func (m *metrics) count(result Result, err error) {
	if m == nil {
		return
	}
	if errors.Is(err, ErrStaleFence) {
		m.rejected.Inc()
	}
	m.requests[outcomeOf(result, err)].Inc()
}

func outcomeOf(result Result, err error) outcome {
	switch {
	case result.Replayed:
		return outcomeReplayed
	case err == nil:
		return outcomeFirst
	case errors.Is(err, ErrFinal):
		return outcomeFinal
	case errors.Is(err, ErrInProgress):
		return outcomeInProgress
	case errors.Is(err, ErrMismatch), errors.Is(err, ErrSpent):
		return outcomeMismatch
	case errors.Is(err, ErrSuperseded):
		return outcomeSuperseded
	case errors.Is(err, ErrStaleFence):
		return outcomeStale
	case HTTPStatus(err) == 400:
		return outcomeInvalid
	}
	return outcomeFailed
}
