// SPDX-License-Identifier: Apache-2.0

package idemgrpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tierlock/tierlock/idempotency"
)

// refusals are what a client may be told, the first that fits. They tell nothing of
// the database.
var refusals = []struct {
	err  error
	code codes.Code
	text string
}{
	{idempotency.ErrInProgress, codes.Aborted, "a call with this idempotency-key is under way; ask again with the same"},
	{context.Canceled, codes.Canceled, "the call was cancelled; ask again with the same idempotency-key"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "the call took too long; ask again with the same idempotency-key"},
	{idempotency.ErrKeyMissing, codes.InvalidArgument, "this method needs an idempotency-key in the metadata"},
	{idempotency.ErrKeyTooLong, codes.InvalidArgument, "idempotency-key has more than 255 bytes"},
	{idempotency.ErrKeyInvalid, codes.InvalidArgument, "idempotency-key is one value without control characters"},
	{idempotency.ErrMismatch, codes.FailedPrecondition, "idempotency-key was used for another request"},
	{idempotency.ErrSpent, codes.FailedPrecondition, "idempotency-key was used before, and its reply is not kept any more"},
}

// refused is a status for the client, with the cause for interceptors around this one.
type refused struct {
	told  *status.Status
	cause error
}

func (r *refused) Error() string              { return r.told.Err().Error() }
func (r *refused) GRPCStatus() *status.Status { return r.told }
func (r *refused) Unwrap() error              { return r.cause }

// refusal is err for a client.
func refusal(err error) error {
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			return withRetry(known.code, known.text, err)
		}
	}
	switch idempotency.HTTPStatus(err) {
	case 409:
		return withRetry(codes.Aborted, "others were first; ask again with the same idempotency-key", err)
	case 503:
		return withRetry(codes.Unavailable, "the database does not serve; ask again with the same idempotency-key", err)
	}
	return withRetry(codes.Internal, "the call failed", err)
}

// withRetry says when to ask again, to whom that helps.
func withRetry(code codes.Code, text string, cause error) error {
	told := status.New(code, text)
	if code == codes.Aborted || code == codes.Unavailable {
		after := max(idempotency.RetryAfter(cause), 100*time.Millisecond)
		if detailed, err := told.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
			told = detailed
		}
	}
	return &refused{told, cause}
}
