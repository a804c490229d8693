// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"time"
)

// Claim asks for a lease.
type Claim struct {
	Key    string
	TTL    time.Duration
	Holder string // shown to people; at most 128 bytes; decides nothing
	// Block is how many fences the lease reserves, at least 1 and at most
	// 65,536: one for each tenure it may pass through.
	Block uint32
}

// Grant is a lease: the key is this process's until it expires.
type Grant struct {
	Token Token
	// Fence is the first fence of the block; the block's last is
	// Fence + Block - 1. All are above every fence ever granted for the key.
	Fence uint64
	// Until is a local time before which the lease does not expire by the
	// authority's clock. It does not include any margin.
	Until time.Time
	// Table is what Tenure.Table holds for this lease.
	Table string
}

// Refusal is the error of a claim that met another holder. It is contention,
// never a fault.
type Refusal struct {
	// Busy reports that the row could not be examined because a transaction
	// has it locked; the caller looks again soon.
	Busy bool
	// Left is how long the holder's lease still runs by the authority's clock.
	Left time.Duration
	// Holder is what the holder gave as its name.
	Holder string
	// Leaving reports that this driver is still giving back a lease of the key:
	// the one in the way may be that, and gone in a moment.
	Leaving bool
}

func (r *Refusal) Error() string {
	if r.Busy {
		return "row is busy"
	}
	return fmt.Sprintf("held by %q for another %v", r.Holder, r.Left)
}

// Row is the state of a key as a plain read saw it. It grants nothing.
type Row struct {
	// Held reports that a token is set and has not expired.
	Held bool
	// Token, Fence, Holder and Left describe the row. Token is zero when free.
	Token  Token
	Fence  uint64
	Holder string
	Left   time.Duration
	// Until is Left as a local time, counted from before the request was sent.
	Until time.Time
}

// LossReason says how a lease was found not to be ours any more.
type LossReason uint8

const (
	// LossExpired means that the row still has our token, past its expiry.
	LossExpired LossReason = iota + 1
	// LossTaken means that the row has another token.
	LossTaken
	// LossFreed means that the row is free or gone.
	LossFreed
)

func (r LossReason) String() string {
	switch r {
	case LossExpired:
		return "expired"
	case LossTaken:
		return "taken by another"
	case LossFreed:
		return "freed"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Loss is the error of a renewal or release of a lease that the authority no
// longer has. It is final: a token never comes back.
type Loss struct {
	Reason LossReason
	// Fence is the highest fence of the key as the row shows it, 0 when the row
	// is gone.
	Fence uint64
}

func (l *Loss) Error() string {
	return fmt.Sprintf("lease %s (row fence %d)", l.Reason, l.Fence)
}

// Renewal asks for more time.
type Renewal struct {
	Key   string
	Token Token
	TTL   time.Duration
	// Until is when the lease expires as far as the caller knows; nothing is
	// sent for it afterwards.
	Until time.Time
}

// Renewed is the answer to a Renewal. With a nil Err, Until is the lease's new
// local expiry as Grant.Until is. Err is a *Loss when the lease has ended, a
// *Refusal with Busy when the row was locked by a transaction and should be
// asked for again soon, and a classified error otherwise: then nothing is
// known, and the old expiry stands.
type Renewed struct {
	Until time.Time
	Err   error
}

// Release gives a lease back.
type Release struct {
	Key   string
	Token Token
	// Until is the lease's local expiry: attempts end when it has surely
	// passed.
	Until time.Time
	// MinHold keeps the key held until that long after its grant, under a token
	// that nobody knows; 0 frees it at once.
	MinHold time.Duration
}

// Authority decides who holds a key. All methods are safe for concurrent use;
// keys carry their namespace and have been validated.
type Authority interface {
	// Claim asks once and never waits for another holder: a *Refusal says who
	// is in the way. The token is drawn by the authority, one for each attempt.
	// When it returns an error, whatever was or may have been granted is freed
	// by the driver within the bounds of promise P5; a caller that still wants
	// the key claims anew.
	Claim(ctx context.Context, c Claim) (Grant, error)

	// Look reads a key's row without locking it.
	Look(ctx context.Context, key string) (Row, error)

	// Renew asks for more time for many leases; the answers are in the order of
	// the requests. It never waits for a locked row and never re-creates
	// anything.
	Renew(ctx context.Context, rs []Renewal) []Renewed

	// Release frees the row if it is still ours. It answers nil when it did, or
	// when an earlier attempt of the same call whose reply was lost may have,
	// and a *Loss when the authority no longer had the lease. When ctx ends
	// first it returns the context's error, and goes on in the background until
	// the row is free or expired.
	Release(ctx context.Context, r Release) error

	// Timeout is how long one claim may take on the server. No lease is asked
	// for with a TTL below twice that: it might be used up when it arrives.
	Timeout() time.Duration

	// Observe sets who is told of every exchange with the server from now on.
	Observe(o Observer)

	// Ping asks whether the server answers and takes writes, without any lease.
	Ping(ctx context.Context) error

	// Check answers at start-up whether the authority can be relied on.
	Check(ctx context.Context) error

	// Close waits until ctx ends for background work (releases, outcomes that
	// are not known yet), names in its error what it had to leave to expire, and
	// closes what the driver itself opened.
	Close(ctx context.Context) error
}
