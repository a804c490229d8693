// SPDX-License-Identifier: Apache-2.0

package idemhttp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/tierlock/tierlock/idempotency"
)

// Codec is the [idempotency.Request] codec of stored responses: the length of a head
// in JSON, the head, and the body as it is. What it means never changes.
const Codec uint16 = 0x6801

// response is what is sent and stored.
type response struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	body   []byte
}

func (r *response) encode() ([]byte, error) {
	stored := response{Status: r.Status, Header: r.Header.Clone()}
	for _, name := range momentary {
		stored.Header.Del(name)
	}
	head, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	b := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64+len(head)+len(r.body)), uint64(len(head)))
	return append(append(b, head...), r.body...), nil
}

func decode(b []byte) (*response, error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, fmt.Errorf("%w: it has no head", idempotency.ErrResultUndecodable)
	}
	head, body := b[n:n+int(length)], b[n+int(length):]
	r := &response{body: body}
	if err := json.Unmarshal(head, r); err != nil || r.Status < 200 || r.Status > 999 {
		return nil, fmt.Errorf("%w: its head is malformed", idempotency.ErrResultUndecodable)
	}
	return r, nil
}

// send is for after the end of the transaction. Whether it arrives is the client's
// to find out.
func (r *response) send(w http.ResponseWriter, replayed bool) {
	maps.Copy(w.Header(), r.Header)
	w.Header().Del(replayedHeader)
	if replayed {
		w.Header().Set(replayedHeader, "true")
	}
	if bodyAllowed(r.Status) {
		w.Header().Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	w.WriteHeader(r.Status)
	if len(r.body) > 0 {
		_, _ = w.Write(r.body)
	}
}

const replayedHeader = "Idempotent-Replayed"

var (
	// hopByHop are fields of one connection (RFC 9110, 7.6.1), and the length, which
	// follows from the body.
	hopByHop = []string{"Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade"}
	// momentary are of one response: the server sets Date anew, and a cookie may be
	// withdrawn by the time it would be sent again.
	momentary = []string{"Date", "Set-Cookie", replayedHeader}
)

// recorder holds a response back. It offers what http.ResponseWriter does, and no
// more.
type recorder struct {
	header  http.Header
	written http.Header // as it was when the status was written
	status  int
	body    []byte
	most    int
	long    bool
	upgrade bool
}

func newRecorder(most int) *recorder { return &recorder{header: http.Header{}, most: most} }

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idemhttp: invalid status %d", status))
	case status == http.StatusSwitchingProtocols:
		r.upgrade = true
	case status < 200: // news on the way, for one connection
	case r.status == 0:
		r.status, r.written = status, r.header.Clone()
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(r.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if r.long || len(b) > r.most-len(r.body) {
		r.long = true
		return 0, fmt.Errorf("%w: the response's body has more than %d bytes", idempotency.ErrResultTooLarge, r.most)
	}
	r.body = append(r.body, b...)
	return len(b), nil
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// response is what the handler has made, or why it cannot be held back.
func (r *recorder) response() (*response, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	h := r.written
	for name := range r.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return nil, errTrailer
		}
	}
	switch {
	case r.upgrade:
		return nil, errors.New("idemhttp: the handler switches protocols, which cannot be repeated")
	case r.long:
		return nil, fmt.Errorf("%w: the response's body has more than %d bytes", idempotency.ErrResultTooLarge, r.most)
	case len(h.Values("Trailer")) > 0:
		return nil, errTrailer
	case strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/event-stream"):
		return nil, errors.New("idemhttp: the handler streams events, which cannot be held back until COMMIT: route it around the middleware")
	}
	for _, field := range h.Values("Connection") {
		for name := range strings.SplitSeq(field, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopByHop {
		h.Del(name)
	}
	// As the server would, but for a replay too.
	if _, set := h["Content-Type"]; !set && len(r.body) > 0 && h.Get("Content-Encoding") == "" {
		h.Set("Content-Type", http.DetectContentType(r.body))
	}
	return &response{Status: r.status, Header: h, body: slices.Clip(r.body)}, nil
}

var errTrailer = errors.New("idemhttp: the handler sends trailers, which are not stored")
