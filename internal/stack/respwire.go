// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// respWire reads RESP2 and RESP3, pipelines and subscriptions.
type respWire struct{}

// readRequest reads an array of bulk strings, or an inline command.
func (*respWire) readRequest(r *bufio.Reader) (*message, error) {
	v, err := readValue(r)
	if err != nil {
		return nil, err
	}
	args := v.items
	if v.kind != '*' {
		args = strings.Fields(string(v.raw))
	}
	m := &message{answered: len(args) > 0}
	m.Raw = v.raw
	if len(args) > 0 {
		m.Verb, m.Text = strings.ToUpper(args[0]), strings.Join(args, " ")
	}
	if isConfirmation(m.Verb) {
		m.confirm = max(1, len(args)-1) // each channel is confirmed by itself
	}
	return m, nil
}

// readReply reads one value and tells replies from what a subscription brings.
func (*respWire) readReply(r *bufio.Reader, head func() *message) (answer, error) {
	v, err := readValue(r)
	if err != nil {
		return answer{}, err
	}
	a := answer{Reply: Reply{Raw: v.raw}}
	if v.kind == '-' {
		a.Error = strings.TrimSpace(string(v.raw[1:]))
	}
	m := head()
	switch {
	case m == nil:
		a.unasked = true
	case v.kind == '>' || (v.kind == '*' && m.confirm > 0): // RESP2 has no pushes, confirmations are plain arrays
		first := ""
		if len(v.items) > 0 {
			first = v.items[0]
		}
		if a.unasked = m.confirm == 0 || !strings.EqualFold(first, m.Verb); !a.unasked {
			m.confirm--
			a.unasked = m.confirm > 0
		}
	}
	return a, nil
}

func (*respWire) encodeError(a Action) []byte { return []byte("-" + a.text + "\r\n") }

func isConfirmation(verb string) bool {
	switch verb {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		return true
	}
	return false
}

// value is one RESP value as it came, with its direct elements where those are strings.
type value struct {
	kind  byte
	raw   []byte
	items []string
}

func readValue(r *bufio.Reader) (value, error) {
	var raw bytes.Buffer
	v, err := appendValue(&raw, r, 0)
	v.raw = raw.Bytes()
	return v, err
}

// maxDepth bounds nesting: what is deeper is not Redis.
const maxDepth = 32

// appendValue copies one value, with everything nested in it, from r to raw.
func appendValue(raw *bytes.Buffer, r *bufio.Reader, depth int) (value, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return value{}, err
	}
	raw.Write(line)
	v := value{kind: line[0]}
	text := strings.TrimRight(string(line[1:]), "\r\n")
	count := 0
	switch v.kind {
	case '$', '!', '=': // a length, then that many bytes
		n, err := strconv.Atoi(text)
		if err != nil {
			return v, fmt.Errorf("%w: %q", errWire, line)
		}
		if n < 0 {
			return v, nil
		}
		at := raw.Len()
		if _, err := io.CopyN(raw, r, int64(n)+2); err != nil { // grows with what comes, not with what was announced
			return v, err
		}
		v.items = []string{string(raw.Bytes()[at : at+n])}
		return v, nil
	case '*', '~', '>', '%', '|': // a number of elements
		if count, err = strconv.Atoi(text); err != nil || depth == maxDepth {
			return v, fmt.Errorf("%w: %q", errWire, line)
		}
		if v.kind == '%' || v.kind == '|' {
			count *= 2
		}
	default: // a line, whatever it is
		v.items = []string{text}
		return v, nil
	}
	for range count {
		item, err := appendValue(raw, r, depth+1)
		if err != nil {
			return v, err
		}
		text := ""
		if len(item.items) == 1 {
			text = item.items[0]
		}
		v.items = append(v.items, text)
	}
	if v.kind == '|' { // attributes precede the value they are about
		return appendValue(raw, r, depth+1)
	}
	return v, nil
}
