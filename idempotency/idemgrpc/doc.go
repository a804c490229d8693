// SPDX-License-Identifier: Apache-2.0

// Package idemgrpc makes unary gRPC methods run once per key, on top of
// [idempotency.Guard.Once]. It is a module of its own, so that who does not use gRPC
// does not link it.
//
// The key is the one value of the request's metadata idempotency-key. The method's
// handler runs inside the guard's transaction, which [Tx] hands to it, and its reply
// is sent after COMMIT. A reply from before comes with the header metadata
// idempotent-replayed: true.
//
// What comes of a handler's error: InvalidArgument, NotFound, AlreadyExists,
// PermissionDenied, FailedPrecondition, OutOfRange and Unimplemented roll back and
// are stored, so that a call with the same key gets the same status, details
// included. All others roll back and are not stored: the same key may be tried again.
//
// What is refused, before the handler runs:
//
//   - InvalidArgument: no key, more than one, or one that is no key.
//   - FailedPrecondition: a key that was used for another request. Method and
//     message count.
//   - Aborted with RetryInfo: a key whose first call is under way.
//   - Unavailable with RetryInfo: the database does not serve.
package idemgrpc
