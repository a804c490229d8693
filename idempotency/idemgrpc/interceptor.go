// SPDX-License-Identifier: Apache-2.0

package idemgrpc

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tierlock/tierlock/idempotency"
)

const (
	keyName      = "idempotency-key"
	replayedName = "idempotent-replayed"
)

// Option changes a default.
type Option interface{ apply(*interceptor) }

type option func(*interceptor)

func (o option) apply(to *interceptor) { o(to) }

// WithMethods sets which methods need a key, by their full names, as in
// "/bank.Payments/Create"; all others go straight to their handlers. Default: all.
func WithMethods(full ...string) Option {
	return option(func(i *interceptor) { i.chosen = func(m string) bool { return slices.Contains(full, m) } })
}

// WithScope says whose key it is: the tenant or client that the call was
// authenticated as. The same key of another scope is another key. An error with a
// status is returned as it is, another is PermissionDenied. Default: all share one
// scope.
func WithScope(scope func(context.Context) (string, error)) Option {
	return option(func(i *interceptor) { i.scope = scope })
}

type interceptor struct {
	guard  *idempotency.Guard
	chosen func(method string) bool
	scope  func(context.Context) (string, error)
}

// newInterceptor panics where grpc.NewServer would: the program is wrong before it
// serves.
func newInterceptor(g *idempotency.Guard, opts []Option) *interceptor {
	i := &interceptor{
		guard:  g,
		chosen: func(string) bool { return true },
		scope:  func(context.Context) (string, error) { return "", nil },
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(i)
		}
	}
	if g == nil || i.scope == nil {
		panic("idemgrpc: guard or scope is nil")
	}
	return i
}

// Unary has the handlers of unary methods run inside g, once per key. It panics on
// options that cannot work.
func Unary(g *idempotency.Guard, opts ...Option) grpc.UnaryServerInterceptor {
	return newInterceptor(g, opts).unary
}

// Stream refuses the streams of the chosen methods with Unimplemented: what was
// streamed cannot be replayed. Install it beside [Unary], with the same options.
func Stream(g *idempotency.Guard, opts ...Option) grpc.StreamServerInterceptor {
	i := newInterceptor(g, opts)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if i.chosen(info.FullMethod) {
			return status.Error(codes.Unimplemented, "idempotency keys work for unary methods alone")
		}
		return next(server, stream)
	}
}

type txKey struct{}

// Tx is the transaction that the handler's writes belong into, which it must not
// end; nil where there is none, as in methods without a key.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

func (i *interceptor) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !i.chosen(info.FullMethod) {
		return next(ctx, request)
	}
	scope, err := i.scope(ctx)
	if _, said := status.FromError(err); err != nil && !said {
		err = &refused{status.New(codes.PermissionDenied, "it cannot be told whose idempotency-key it is"), err}
	}
	if err != nil {
		return nil, err
	}
	r, err := newRequest(ctx, request, info.FullMethod)
	if err != nil {
		return nil, refusal(err)
	}
	r.Scope = scope
	result, err := i.guard.Once(ctx, nil, r, func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
		return write(context.WithValue(ctx, txKey{}, tx), request, next)
	})
	if u, ok := errors.AsType[*unstored](err); ok {
		return nil, u.err
	}
	if err != nil && !errors.Is(err, idempotency.ErrFinal) {
		return nil, refusal(err)
	}
	if result.Replayed {
		if err := grpc.SetHeader(ctx, metadata.Pairs(replayedName, "true")); err != nil {
			return nil, err
		}
	}
	return decode(result.Body)
}

// unstored is a handler's error that leaves nothing behind.
type unstored struct{ err error }

func (u *unstored) Error() string { return u.err.Error() }
func (u *unstored) Unwrap() error { return u.err }

// write is one run of the handler.
func write(ctx context.Context, request any, next grpc.UnaryHandler) ([]byte, error) {
	reply, err := next(ctx, request)
	if err != nil {
		no := status.Convert(err)
		if !slices.Contains(staying, no.Code()) {
			return nil, &unstored{err}
		}
		stored, err := encode(no.Proto())
		if err == nil {
			err = idempotency.Final(stored, nil)
		}
		return nil, err
	}
	message, ok := reply.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%w: the reply, %T, is no protobuf message", idempotency.ErrUnencodablePayload, reply)
	}
	return encode(message)
}

// staying are the noes that stay ones.
var staying = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented,
}

// newRequest is what is looked at before any I/O.
func newRequest(ctx context.Context, message any, method string) (idempotency.Request, error) {
	r := idempotency.Request{Codec: Codec}
	switch keys := metadata.ValueFromIncomingContext(ctx, keyName); len(keys) {
	case 0:
		return r, fmt.Errorf("%w: the metadata is missing", idempotency.ErrKeyMissing)
	case 1:
		r.Key = keys[0]
	default:
		return r, fmt.Errorf("%w: %d of them", idempotency.ErrKeyInvalid, len(keys))
	}
	m, ok := message.(proto.Message)
	if !ok {
		return r, fmt.Errorf("%w: the request, %T, is no protobuf message", idempotency.ErrUnencodablePayload, message)
	}
	content, err := deterministic.Marshal(m)
	if err != nil {
		return r, fmt.Errorf("%w: %w", idempotency.ErrUnencodablePayload, err)
	}
	r.Fingerprint, err = idempotency.Fingerprint(method, content)
	return r, err
}
