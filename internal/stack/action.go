// SPDX-License-Identifier: Apache-2.0

package stack

// Action says what a proxy does with a request before the server sees it, or with the reply to it, which the server has
// by then carried out. The zero value is [Pass].
type Action struct {
	verb   actionVerb
	until  <-chan struct{}
	number uint16
	state  string // SQLSTATE; empty: that of the number
	text   string
}

type actionVerb int

const (
	verbPass actionVerb = iota
	verbSwallow
	verbHangUp
	verbError
)

// Pass forwards.
var Pass = Action{}

// Swallow drops it and leaves the connection open and silent: nothing more comes back on it, as after a network that
// stopped delivering.
var Swallow = Action{verb: verbSwallow}

// HangUp drops it and closes the connection.
var HangUp = Action{verb: verbHangUp}

// HoldUntil forwards once the channel is closed, even when the client has closed its side by then: a packet under way
// still arrives.
func HoldUntil(released <-chan struct{}) Action { return Action{until: released} }

// SQLError answers with a MySQL error packet, instead of asking the server (a request) or of what it said (a reply).
func SQLError(number uint16, text string) Action {
	return Action{verb: verbError, number: number, text: text}
}

// SQLStateError is SQLError with a SQLSTATE of five characters, for numbers that only clusters and other servers have.
func SQLStateError(number uint16, state, text string) Action {
	return Action{verb: verbError, number: number, state: state, text: text}
}

// RedisError answers with a Redis error such as "LOADING Redis is loading the dataset in memory".
func RedisError(text string) Action { return Action{verb: verbError, text: text} }

// After holds first and then does a.
func (a Action) After(released <-chan struct{}) Action {
	a.until = released
	return a
}

// trap loses the n-th reply that matches.
type trap struct {
	left  int
	match func(Request) bool
	then  Action
	hit   chan Request
}
