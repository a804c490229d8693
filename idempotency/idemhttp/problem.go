// SPDX-License-Identifier: Apache-2.0

package idemhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// problem is a refusal in the form of RFC 9457. It tells nothing of the database, and
// of a stored request only that there is one.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// problems are what a client may be told, the first that fits.
var problems = []struct {
	err           error
	name          string
	title, detail string
}{
	{idempotency.ErrKeyMissing, "key-missing", "Idempotency-Key is missing", "This operation needs an Idempotency-Key header with a key of your choice, a UUID say."},
	{idempotency.ErrKeyTooLong, "key-too-long", "Idempotency-Key is too long", "A key has at most 255 bytes."},
	{idempotency.ErrKeyInvalid, "key-invalid", "Idempotency-Key is invalid", "Send one Idempotency-Key header, with one string in double quotes."},
	{idempotency.ErrUnencodablePayload, "body-malformed", "Body is malformed", "The body is not one JSON value in UTF-8 without fields that occur twice."},
	{idempotency.ErrMismatch, "key-reused", "Idempotency-Key is already used", "This key was used for another request. Use a new key for a new request."},
	{idempotency.ErrSpent, "key-spent", "Idempotency-Key is already used", "This key was used before, and its response is not kept any more. Use a new key for a new request."},
	{idempotency.ErrInProgress, "in-progress", "A request is outstanding for this Idempotency-Key", "Ask again with the same key."},
	{tier.ErrHeld, "held", "Another request is at work", "What is to be changed is being changed by another request. Ask again with the same key."},
}

// refuse answers err in place of the handler.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := idempotency.HTTPStatus(err)
	p := problem{Type: "about:blank"}
	name := ""
	if no, ok := errors.AsType[*refusal](err); ok {
		status, p.Detail = no.status, no.detail
	}
	for _, known := range problems {
		if errors.Is(err, known.err) {
			name, p.Title, p.Detail = known.name, known.title, known.detail
			break
		}
	}
	if ended := r.Context().Err(); ended != nil && errors.Is(err, ended) {
		status = http.StatusServiceUnavailable // for whoever still hears it
	}
	if status == http.StatusInternalServerError {
		m.logger.Error("request with an idempotency key failed", zap.String("method", r.Method), zap.Error(withoutKey(err)))
	}
	p.Status = status
	if p.Title == "" {
		p.Title = http.StatusText(status)
	}
	if p.Detail == "" && status == http.StatusServiceUnavailable {
		p.Detail = "Ask again with the same key."
	}
	h := w.Header()
	if status == http.StatusConflict || status == http.StatusServiceUnavailable {
		h.Set("Retry-After", strconv.FormatInt(seconds(idempotency.RetryAfter(err)), 10))
	}
	if m.docs != "" {
		h.Set("Link", fmt.Sprintf("<%s>; rel=\"describedby\"", m.docs))
		if name != "" {
			p.Type = m.docs + "#" + name
		}
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p)
}

// seconds are whole ones, rounded up, and at least one.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// withoutKey is err without the request it is about.
func withoutKey(err error) error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*tier.Error](err); ok {
		return e.Err
	}
	return err
}
