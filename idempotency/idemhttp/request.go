// SPDX-License-Identifier: Apache-2.0

package idemhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/tierlock/tierlock/idempotency"
)

// refusal is why a request is not even looked at.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

// readBody reads all of it, so that it can be compared, and read again by every run
// of the handler.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	switch {
	case r.Header.Get("Upgrade") != "":
		return nil, &refusal{http.StatusBadRequest, "an upgrade cannot be repeated"}
	case len(r.Trailer) > 0:
		return nil, &refusal{http.StatusBadRequest, "trailers cannot be compared"}
	case r.ContentLength > most:
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", most)}
	case r.MultipartForm != nil, len(r.PostForm) > 0:
		return nil, errBodyGone
	case r.Body == nil:
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", most)}
	}
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "the body cannot be read"}
	}
	if len(body) == 0 && r.ContentLength > 0 {
		return nil, errBodyGone
	}
	return body, nil
}

// errBodyGone is a program that cannot tell its requests apart.
var errBodyGone = errors.New("idemhttp: the body was read before the middleware, which has to come first")

// fingerprint is of what the request asks for.
func fingerprint(r *http.Request, body []byte) ([]byte, error) {
	query := r.URL.RawQuery
	if values, err := url.ParseQuery(query); err == nil {
		query = values.Encode() // sorted
	}
	operation := r.Method + " " + r.URL.EscapedPath() + "?" + query
	if len(body) > 0 && isJSON(r.Header) {
		return idempotency.Fingerprint(operation, json.RawMessage(body))
	}
	return idempotency.Fingerprint(operation, body)
}

// isJSON reports that the body is JSON as it stands: not compressed, in UTF-8.
func isJSON(h http.Header) bool {
	kind, parameters, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || h.Get("Content-Encoding") != "" {
		return false
	}
	if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return false
	}
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// again is the request for one run of the handler.
func again(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	return r
}
