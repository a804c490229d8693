// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
)

// Request is one command of a client: a Redis command, or a MySQL command packet.
type Request struct {
	// Conn numbers the connections of the proxy from 1.
	Conn int
	// Verb is SET, EVALSHA ... or COM_QUERY, COM_STMT_PREPARE, COM_STMT_EXECUTE ...
	Verb string
	// Text is the statement, for COM_STMT_EXECUTE and COM_STMT_CLOSE that of its COM_STMT_PREPARE; or the Redis command
	// with its arguments, joined by spaces.
	Text string
	// Raw is what was sent, where a bound value can be looked for.
	Raw []byte
}

// Has says whether the verb or the text contains part, in any case.
func (r Request) Has(part string) bool {
	return strings.EqualFold(r.Verb, part) || strings.Contains(strings.ToLower(r.Text), strings.ToLower(part))
}

// Holds says whether the bytes sent contain value, such as a token or key that was bound to a prepared statement.
func (r Request) Holds(value []byte) bool { return bytes.Contains(r.Raw, value) }

// Having matches requests by [Request.Has].
func Having(part string) func(Request) bool { return func(r Request) bool { return r.Has(part) } }

// Reply is the server's whole answer to a request.
type Reply struct {
	// Number of a MySQL error, 0 for none.
	Number uint16
	// Error is the text of an error of either protocol, empty for none.
	Error string
	// Raw is what the server sent.
	Raw []byte
}

// Failed says whether the server answered with an error.
func (r Reply) Failed() bool { return r.Error != "" || r.Number != 0 }

// message is what one read of the client's side gives.
type message struct {
	Request

	handshake bool // no request: part of the connection's set-up
	answered  bool // the server will answer it

	command byte // MySQL: the command byte
	confirm int  // Redis: how many confirmations a (P)SUBSCRIBE is still to get

	canned []byte // the proxy's own answer, due in turn
}

// answer is what one read of the server's side gives.
type answer struct {
	Reply

	unasked bool // a greeting, a push, a farewell: belongs to no request
}

// wire reads one connection's protocol. Its methods may run on two goroutines, one per direction.
type wire interface {
	readRequest(*bufio.Reader) (*message, error)
	// readReply reads one whole answer; head is the oldest request without one, nil if there is none.
	readReply(r *bufio.Reader, head func() *message) (answer, error)
	// encodeError makes an error answer to a request of what the action says.
	encodeError(Action) []byte
}

// errWire is what a peer sent that this proxy does not follow. It ends the connection, which the test will notice.
var errWire = errors.New("stack: proxy: not understood")
