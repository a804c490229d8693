// SPDX-License-Identifier: Apache-2.0

// Package idemhttp makes the handlers of POST and PATCH requests run once per
// Idempotency-Key: what the draft standard of that header asks of a server, on top
// of [idempotency.Guard.Once].
//
// The handler runs inside the guard's transaction, which [Tx] hands to it. Its
// response is held back until COMMIT, stored with what it wrote, and given to
// whoever comes again with the same key, byte by byte. What the handler does outside
// that transaction happens again when it is repeated, and is not undone when it is
// rolled back.
//
// # What is refused, before the handler runs
//
//   - No key, more than one, or one that cannot be read: 400. A key is a string in
//     double quotes, as the draft has it, or the same without them.
//   - A key that was used for something else: 422. Method, path, query and body
//     count; of JSON what it means, of everything else the bytes, so that a multipart
//     form with another boundary is something else.
//   - A key whose first request is under way, or whose outcome is not known: 409
//     with Retry-After.
//   - A body over the limit: 413. Trailers and upgrades, which cannot be compared and
//     repeated: 400.
//   - A database or a lock that does not serve: 503 with Retry-After.
//
// # What comes of a response
//
// By default 2xx and 3xx commit and are stored. 4xx are stored, and what the handler
// wrote is rolled back. 408, 409, 423, 425, 429 and 5xx are rolled back and not
// stored, so that the same key may be tried again. [WithPolicy] changes that.
//
// Stored are the status, the body and the handler's header, without what belongs to
// one connection or moment: hop-by-hop fields, Date, and Set-Cookie, which the first
// response alone carries, because a cookie may be withdrawn and a stored one would
// come back. What middleware around this one sets is its own. Replays carry
// Idempotent-Replayed: true.
//
// Responses that cannot be held back are 500, and nothing is written: server-sent
// events, trailers, and what is longer than the limit. The handler's ResponseWriter
// is no http.Flusher and no http.Hijacker.
//
// # When the client goes away
//
// Its request's context ends. Before COMMIT has been sent everything is rolled back;
// after that it is written. The client asks again with the same key and gets the
// response, or has it made; it is never made twice. A panic of the handler rolls
// back and goes on to the server, http.ErrAbortHandler too.
package idemhttp
