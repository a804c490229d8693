// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// fingerprintVersion is the first byte of every fingerprint. What version 1 means
// never changes: stored requests are compared with it.
const fingerprintVersion = 1

// What a payload is hashed as.
const (
	payloadJSON  byte = 'j'
	payloadBytes byte = 'b'
)

// Fingerprint says in 33 bytes what a request asks for: a version and the SHA-256
// of operation and payload, for [Request].Fingerprint. Requests that mean the same
// have the same one, whatever release or process has made it.
//
// A []byte is taken byte by byte. A [json.RawMessage] is taken as the JSON text it
// is, and of everything else what json.Marshal makes of it. Of JSON the order of an
// object's fields, white space and how strings are escaped do not matter, nor how a
// number is written: 1, 1.0 and 10e-1 are equal, and numbers of any length differ
// when their values do. The order of arrays matters, and null is not absence.
//
// Errors: [ErrOption] for an empty operation, and [ErrUnencodablePayload], without
// the payload's contents, for what has no one meaning or no JSON form: NaN,
// channels, cycles, more than 10000 levels; text that is not UTF-8, which
// json.Marshal would replace; in raw JSON also a field that occurs twice, half a
// surrogate pair, and anything after the value. A MarshalJSON that calls itself
// without end is not found out: it ends the process, as under json.Marshal.
func Fingerprint(operation string, payload any) ([]byte, error) {
	if operation == "" {
		return nil, fmt.Errorf("%w: fingerprint: the operation has no name", ErrOption)
	}
	kind, content, err := canonicalPayload(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: of operation %.64q: %w", ErrUnencodablePayload, operation, err)
	}
	text := binary.AppendUvarint(nil, uint64(len(operation)))
	text = append(text, operation...)
	text = append(text, kind)
	hash := sha256.New()
	_, _ = hash.Write(text) // never fails
	_, _ = hash.Write(content)
	return hash.Sum([]byte{fingerprintVersion}), nil
}

func canonicalPayload(payload any) (kind byte, content []byte, err error) {
	switch p := payload.(type) {
	case []byte:
		return payloadBytes, p, nil
	case json.RawMessage:
		content, err = canonicalJSON(p, false)
		return payloadJSON, content, err
	}
	if err := checkDepth(payload); err != nil {
		return 0, nil, err
	}
	text, err := json.Marshal(payload)
	if err != nil {
		return 0, nil, err
	}
	content, err = canonicalJSON(text, true)
	return payloadJSON, content, err
}
