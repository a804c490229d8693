// SPDX-License-Identifier: Apache-2.0

package idemgrpc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the business's pool
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/idempotency/idemgrpc"
	"github.com/tierlock/tierlock/internal/stack"
)

const (
	create = "/bank.Payments/Create"
	list   = "/bank.Payments/List"
	watch  = "/bank.Payments/Watch"
)

// bank is a service on a real MariaDB, without generated code: it takes a struct and
// returns a string.
type bank struct {
	db    *sql.DB
	proxy *stack.Proxy
	conn  *grpc.ClientConn
	// handle is what the method does.
	handle func(ctx context.Context, in *structpb.Struct) (*wrapperspb.StringValue, error)
}

func newBank(t *testing.T, opts ...idemgrpc.Option) *bank {
	t.Helper()
	b := &bank{handle: pay}
	d := stack.SharedSQL(t, stack.MariaDB).CreateDatabase(t)
	b.proxy = stack.StartProxy(t, d.Server())
	admin, err := sql.Open("mysql", d.AdminDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	if err := idempotency.EnsureSchema(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		"CREATE TABLE payment (id INT PRIMARY KEY AUTO_INCREMENT, cents INT NOT NULL)",
		fmt.Sprintf("CREATE USER %sb@'%%' IDENTIFIED BY 'business'", d.Name),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.* TO %[1]sb@'%%'", d.Name),
	} {
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), fmt.Sprintf("DROP USER %sb@'%%'", d.Name)) })
	if b.db, err = sql.Open("mysql", fmt.Sprintf("%sb:business@tcp(%s)/%[1]s", d.Name, b.proxy.Addr())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.db.Close() })
	g, err := idempotency.New(b.db, idempotency.WithReapInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	b.serve(t, g, opts)
	return b
}

func (b *bank) serve(t *testing.T, g *idempotency.Guard, opts []idemgrpc.Option) {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.UnaryInterceptor(idemgrpc.Unary(g, opts...)), grpc.StreamInterceptor(idemgrpc.Stream(g, opts...)))
	method := func(name, full string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			in := &structpb.Struct{}
			if err := decode(in); err != nil {
				return nil, err
			}
			return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: full}, func(ctx context.Context, in any) (any, error) {
				message, _ := in.(*structpb.Struct)
				return b.handle(ctx, message)
			})
		}}
	}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bank.Payments",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{method("Create", create), method("List", list)},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(any, grpc.ServerStream) error {
			return nil
		}}},
	}, nil)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	var err error
	b.conn, err = grpc.NewClient("passthrough:///bank", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close() })
}

func pay(ctx context.Context, in *structpb.Struct) (*wrapperspb.StringValue, error) {
	done, err := idemgrpc.Tx(ctx).ExecContext(ctx, "INSERT INTO payment (cents) VALUES (?)", in.GetFields()["cents"].GetNumberValue())
	if err != nil {
		return nil, err
	}
	id, _ := done.LastInsertId()
	return wrapperspb.String(fmt.Sprintf("payment %d at %d", id, time.Now().UnixNano())), nil
}

type answer struct {
	text     string
	replayed bool
	err      error
}

// call asks with these keys.
func (b *bank) call(t *testing.T, method string, cents float64, metadataPairs ...string) answer {
	t.Helper()
	in, err := structpb.NewStruct(map[string]any{"cents": cents, "to": "x", "a": 1, "b": 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var header metadata.MD
	out := &wrapperspb.StringValue{}
	err = b.conn.Invoke(metadata.AppendToOutgoingContext(ctx, metadataPairs...), method, in, out, grpc.Header(&header))
	return answer{out.GetValue(), len(header.Get("idempotent-replayed")) == 1, err}
}

func (b *bank) paid(t *testing.T, payments, stored int) {
	t.Helper()
	var p, s int
	if err := b.db.QueryRowContext(t.Context(), "SELECT (SELECT COUNT(*) FROM payment), (SELECT COUNT(*) FROM idempotency)").Scan(&p, &s); err != nil {
		t.Fatal(err)
	}
	if p != payments || s != stored {
		t.Errorf("%d payments, %d stored, want %d and %d", p, s, payments, stored)
	}
}

func code(t *testing.T, what string, a answer, want codes.Code) {
	t.Helper()
	s := status.Convert(a.err)
	if s.Code() != want {
		t.Errorf("%s: %v, want %v", what, a.err, want)
	}
	var retry *errdetails.RetryInfo
	for _, d := range s.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			retry = r
		}
	}
	if (retry.GetRetryDelay().AsDuration() > 0) != (want == codes.Aborted || want == codes.Unavailable) {
		t.Errorf("%s: retry %v", what, retry)
	}
}

const key = "idempotency-key"

func TestUnary_replay(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	first := b.call(t, create, 100, key, "one")
	if first.err != nil || first.replayed {
		t.Fatalf("first: %+v", first)
	}
	for range 20 { // the order of a map's fields differs from time to time
		if a := b.call(t, create, 100, key, "one"); a.err != nil || !a.replayed || a.text != first.text {
			t.Fatalf("again: %+v", a)
		}
	}
	code(t, "other message", b.call(t, create, 101, key, "one"), codes.FailedPrecondition)
	code(t, "other method", b.call(t, list, 100, key, "one"), codes.FailedPrecondition)
	code(t, "missing", b.call(t, create, 100), codes.InvalidArgument)
	code(t, "two", b.call(t, create, 100, key, "a", key, "b"), codes.InvalidArgument)
	code(t, "blank", b.call(t, create, 100, key, "  "), codes.InvalidArgument)
	code(t, "long", b.call(t, create, 100, key, fmt.Sprintf("%0256d", 1)), codes.InvalidArgument)
	b.paid(t, 1, 1)
}

func TestUnary_inProgress(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	b.handle = func(ctx context.Context, in *structpb.Struct) (*wrapperspb.StringValue, error) {
		close(entered)
		<-leave
		return pay(ctx, in)
	}
	letGo := sync.OnceFunc(func() { close(leave) })
	t.Cleanup(letGo) // before the server stops
	first := make(chan answer, 1)
	go func() { first <- b.call(t, create, 1, key, "one") }()
	<-entered
	code(t, "at once", b.call(t, create, 1, key, "one"), codes.Aborted)
	letGo()
	if a := <-first; a.err != nil || a.replayed {
		t.Errorf("first: %+v", a)
	}
	if a := b.call(t, create, 1, key, "one"); a.err != nil || !a.replayed {
		t.Errorf("after: %+v", a)
	}
	b.paid(t, 1, 1)
}

func TestUnary_sameKey_P11(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	b.db.SetMaxOpenConns(20)
	var first atomic.Int64
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			for {
				a := b.call(t, create, 1, key, "one")
				if status.Code(a.err) == codes.Aborted {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if a.err != nil {
					t.Error(a.err)
				}
				if !a.replayed {
					first.Add(1)
				}
				return
			}
		})
	}
	calls.Wait()
	if first.Load() != 1 {
		t.Errorf("%d were first", first.Load())
	}
	b.paid(t, 1, 1)
}

var staying = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented,
}

// TestUnary_errors: what a handler's error leaves behind.
func TestUnary_errors(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	runs, stored := 0, 0
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		stays := slices.Contains(staying, c)
		if stays {
			stored++
		}
		runs = 0
		b.handle = func(ctx context.Context, in *structpb.Struct) (*wrapperspb.StringValue, error) {
			runs++
			if _, err := pay(ctx, in); err != nil {
				t.Error(err)
			}
			s, err := status.New(c, "no").WithDetails(&errdetails.ErrorInfo{Reason: "why"})
			if err != nil {
				t.Error(err)
			}
			return nil, s.Err()
		}
		for i := range 2 {
			a := b.call(t, create, 1, key, c.String())
			s := status.Convert(a.err)
			if s.Code() != c || s.Message() != "no" || len(s.Details()) != 1 || a.replayed != (stays && i == 1) {
				t.Errorf("%v: %+v", c, a)
			}
		}
		if want := map[bool]int{true: 1, false: 2}[stays]; runs != want {
			t.Errorf("%v: %d runs", c, runs)
		}
	}
	b.paid(t, 0, stored)
}

func TestUnary_scopeAndMethods(t *testing.T) {
	t.Parallel()
	b := newBank(t, idemgrpc.WithMethods(create), idemgrpc.WithScope(func(ctx context.Context) (string, error) {
		if tenants := metadata.ValueFromIncomingContext(ctx, "tenant"); len(tenants) == 1 {
			return tenants[0], nil
		}
		return "", errors.New("secret")
	}))
	for _, tenant := range []string{"a", "b"} {
		if a := b.call(t, create, 1, key, "one", "tenant", tenant); a.err != nil || a.replayed {
			t.Errorf("%s: %+v", tenant, a)
		}
	}
	code(t, "no tenant", b.call(t, create, 1, key, "one"), codes.PermissionDenied)
	b.handle = func(ctx context.Context, _ *structpb.Struct) (*wrapperspb.StringValue, error) {
		if idemgrpc.Tx(ctx) != nil {
			t.Error("there is a transaction")
		}
		return wrapperspb.String("listed"), nil
	}
	if a := b.call(t, list, 1); a.err != nil || a.text != "listed" {
		t.Errorf("without a key: %+v", a)
	}
	b.paid(t, 2, 2)
}

func TestStream_refused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts []idemgrpc.Option
		want codes.Code
	}{
		{nil, codes.Unimplemented},
		{[]idemgrpc.Option{idemgrpc.WithMethods(create)}, codes.OK},
	} {
		b := newBank(t, c.opts...)
		stream, err := b.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, watch)
		if err != nil {
			t.Fatal(err)
		}
		err = stream.RecvMsg(&wrapperspb.StringValue{})
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != c.want {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
}

func TestUnary_databaseDown(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	b.proxy.Cut()
	code(t, "down", b.call(t, create, 1, key, "one"), codes.Unavailable)
	if err := b.proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	if a := b.call(t, create, 1, key, "one"); a.err != nil || a.replayed {
		t.Errorf("again: %+v", a)
	}
	b.paid(t, 1, 1)
}

func TestUnary_invalid(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a nil guard was taken")
		}
	}()
	idemgrpc.Unary(nil)
}
