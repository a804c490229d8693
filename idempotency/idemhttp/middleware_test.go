// SPDX-License-Identifier: Apache-2.0

package idemhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tierlock/tierlock/idempotency/idemhttp"
)

const one = `{"cents":100,"to":"x"}`

var docs = idemhttp.WithDocs("https://docs.example.com/keys")

func TestMiddleware_replay(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		at := r.serve(t, pay, docs) + "/payments?b=2&a=1"
		first := r.post(t, at, `"one-key"`, one)
		if first.status != 201 || first.replayed() || first.header.Get("Set-Cookie") == "" {
			t.Fatalf("first: %+v", first)
		}
		for _, again := range [][3]string{
			{at, `"one-key"`, one},
			{at, "one-key", ` { "to":"x", "cents":1e2 }`},
			{strings.Replace(at, "b=2&a=1", "a=1&b=2", 1), ` "one-key" `, one},
		} {
			a := r.post(t, again[0], again[1], again[2])
			if a.status != 201 || !a.replayed() || a.body != first.body {
				t.Errorf("%v: %+v", again, a)
			}
			for _, name := range []string{"Content-Type", "Location", "Content-Length"} {
				if a.header.Get(name) != first.header.Get(name) || a.header.Get(name) == "" {
					t.Errorf("%s %q, first %q", name, a.header.Get(name), first.header.Get(name))
				}
			}
			if a.header.Get("Set-Cookie") != "" || a.header.Get("X-Hop") != "" || len(a.header["Date"]) != 1 {
				t.Errorf("header %v", a.header)
			}
		}
		for what, other := range map[string][2]string{
			"body":  {at, `{"cents":101,"to":"x"}`},
			"field": {at, `{"cents":100,"to":"x","note":null}`},
			"path":  {strings.Replace(at, "payments", "refunds", 1), one},
			"query": {at + "&a=2", one},
		} {
			a := r.post(t, other[0], "one-key", other[1])
			refused(t, what, a, 422, "key-reused")
			if strings.Contains(a.body, "id") && strings.Contains(a.body, `"at"`) {
				t.Errorf("it tells the stored response: %s", a.body)
			}
		}
		r.paid(t, 1, 1)
	})
}

func TestMiddleware_keyRefused(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		at := r.serve(t, pay, docs)
		refused(t, "missing", r.post(t, at, "", one), 400, "key-missing")
		refused(t, "two", r.post(t, at, "one-key", one, "Idempotency-Key", "one-key"), 400, "key-invalid")
		for key, name := range map[string]string{
			"  ": "key-missing", `""`: "key-missing", `"  "`: "key-missing",
			`"abc`: "key-invalid", `"`: "key-invalid", `"a"b"`: "key-invalid", `"a";p=1`: "key-invalid", `"a\"`: "key-invalid", `"a\b"`: "key-invalid", `"é"`: "key-invalid", "\"a\tb\"": "key-invalid",
			"a,b": "key-invalid", "a b": "key-invalid", `a"`: "key-invalid", "é": "key-invalid", "a;b": "key-invalid",
			strings.Repeat("k", 256): "key-too-long", `"` + strings.Repeat("k", 256) + `"`: "key-too-long",
		} {
			refused(t, key, r.post(t, at, "", one, "Idempotency-Key", key), 400, name)
		}
		r.paid(t, 0, 0)
		for _, key := range []string{strings.Repeat("k", 255), `"a, \"b\" \\ ;c"`} {
			if a := r.post(t, at, key, one); a.status != 201 || a.replayed() {
				t.Errorf("%s: %+v", key, a)
			}
		}
		r.paid(t, 2, 2)
	})
}

func TestMiddleware_bodyRefused(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		at := r.serve(t, func(w http.ResponseWriter, req *http.Request) {
			b, err := io.ReadAll(req.Body)
			_, _ = fmt.Fprintf(w, "%d %v %d", len(b), err, req.ContentLength)
		}, docs, idemhttp.WithMaxBody(1000))
		refused(t, "long", r.post(t, at, "k", strings.Repeat("x", 1001)), 413, "")
		chunked := func(n int, change func(*http.Request)) answer {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, io.MultiReader(strings.NewReader(strings.Repeat("x", n))))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Idempotency-Key", fmt.Sprint("chunked", n))
			change(req)
			a, err := r.do(req)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		refused(t, "long, chunked", chunked(1001, func(*http.Request) {}), 413, "")
		refused(t, "trailers", chunked(10, func(q *http.Request) { q.Trailer = http.Header{"X-Sum": {"1"}} }), 400, "")
		refused(t, "upgrade", chunked(10, func(q *http.Request) { q.Header.Set("Upgrade", "websocket"); q.Header.Set("Connection", "Upgrade") }), 400, "")
		refused(t, "not JSON", r.post(t, at, "k", "{"), 400, "body-malformed")
		refused(t, "twice", r.post(t, at, "k", `{"a":1,"a":2}`), 400, "body-malformed")
		r.paid(t, 0, 0)
		if a := chunked(1000, func(q *http.Request) { q.Header.Set("Expect", "100-continue") }); a.status != 200 || a.body != "1000 <nil> 1000" {
			t.Errorf("chunked: %+v", a)
		}
		if a := r.post(t, at, "empty", ""); a.status != 200 || a.body != "0 <nil> 0" {
			t.Errorf("empty: %+v", a)
		}
		r.paid(t, 0, 2)
	})
}

// TestMiddleware_passesThrough what needs no key.
func TestMiddleware_passesThrough(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		at := r.serve(t, func(w http.ResponseWriter, req *http.Request) {
			if idemhttp.Tx(req.Context()) != nil {
				t.Error("there is a transaction")
			}
			if _, ok := w.(http.Flusher); !ok {
				t.Error("it is held back")
			}
		}, idemhttp.WithMethods(http.MethodPatch))
		if a := r.post(t, at, "", one); a.status != 200 {
			t.Errorf("%+v", a)
		}
		r.paid(t, 0, 0)
	})
}

func TestMiddleware_inProgress(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		entered, leave := make(chan struct{}), make(chan struct{})
		at := r.serve(t, func(w http.ResponseWriter, req *http.Request) {
			close(entered)
			<-leave
			pay(w, req)
		}, docs, idemhttp.WithWait(-1))
		letGo := sync.OnceFunc(func() { close(leave) })
		t.Cleanup(letGo) // before the server closes
		first := make(chan answer, 1)
		go func() {
			a, err := r.try(t.Context(), at, "one-key", one)
			if err != nil {
				t.Error(err)
			}
			first <- a
		}()
		<-entered
		refused(t, "at once", r.post(t, at, "one-key", one), 409, "in-progress")
		letGo()
		if a := <-first; a.status != 201 || a.replayed() {
			t.Errorf("first: %+v", a)
		}
		if a := r.post(t, at, "one-key", one); a.status != 201 || !a.replayed() {
			t.Errorf("after: %+v", a)
		}
		r.paid(t, 1, 1)
	})
}

// TestMiddleware_policy: what is stored, and what remains of what the handler wrote.
func TestMiddleware_policy(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		var status, runs atomic.Int64
		at := r.serve(t, func(w http.ResponseWriter, req *http.Request) {
			runs.Add(1)
			if _, err := idemhttp.Tx(req.Context()).ExecContext(req.Context(), "INSERT INTO payment (cents) VALUES (1)"); err != nil {
				t.Error(err)
			}
			w.WriteHeader(int(status.Load()))
			_, _ = fmt.Fprintf(w, "run %d", runs.Load())
		})
		payments, stored := 0, 0
		for code, outcome := range map[int]idemhttp.Outcome{
			200: idemhttp.Commit, 204: idemhttp.Commit, 303: idemhttp.Commit,
			400: idemhttp.Refuse, 402: idemhttp.Refuse, 404: idemhttp.Refuse, 422: idemhttp.Refuse,
			408: idemhttp.Retry, 409: idemhttp.Retry, 423: idemhttp.Retry, 425: idemhttp.Retry, 429: idemhttp.Retry, 500: idemhttp.Retry, 503: idemhttp.Retry,
		} {
			status.Store(int64(code))
			runs.Store(0)
			r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			key := fmt.Sprint("status-", code)
			first, second := r.post(t, at, key, one), r.post(t, at, key, one)
			if first.status != code || first.replayed() || second.status != code || second.replayed() != (outcome != idemhttp.Retry) {
				t.Errorf("%d: %+v, then %+v", code, first, second)
			}
			want := int64(1)
			switch outcome {
			case idemhttp.Commit:
				payments++
				stored++
			case idemhttp.Refuse:
				stored++
			case idemhttp.Retry:
				want = 2
			}
			if runs.Load() != want || want == 1 && first.body != second.body {
				t.Errorf("%d: %d runs, %q, then %q", code, runs.Load(), first.body, second.body)
			}
		}
		r.paid(t, payments, stored)
		runs.Store(0)
		status.Store(500)
		other := r.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			w.WriteHeader(500)
		}, idemhttp.WithPolicy(func(int) idemhttp.Outcome { return idemhttp.Commit }))
		if first, second := r.post(t, other, "own", one), r.post(t, other, "own", one); first.status != 500 || !second.replayed() || runs.Load() != 1 {
			t.Errorf("%+v, then %+v", first, second)
		}
	})
}

func TestMiddleware_scope(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		at := r.serve(t, pay, idemhttp.WithScope(func(req *http.Request) (string, error) {
			if tenant := req.Header.Get("Tenant"); tenant != "" {
				return tenant, nil
			}
			return "", errors.New("secret")
		}))
		for _, tenant := range []string{"a", "b", "A"} {
			if a := r.post(t, at, "one-key", one, "Tenant", tenant); a.status != 201 || a.replayed() {
				t.Errorf("%s: %+v", tenant, a)
			}
		}
		if a := r.post(t, at, "one-key", one, "Tenant", "a"); !a.replayed() {
			t.Errorf("%+v", a)
		}
		refused(t, "none", r.post(t, at, "one-key", one), 403, "")
		r.paid(t, 3, 3)
	})
}

// TestMiddleware_panic: nothing is left of a handler that does not return, and its key
// works.
func TestMiddleware_panic(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		var ends func()
		h := idemhttp.Middleware(r.guard)(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			pay(w, req)
			if ends != nil {
				ends()
			}
		}))
		ask := func() (w *httptest.ResponseRecorder, recovered any) {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(one))
			req.Header.Set("Idempotency-Key", "one-key")
			req.Header.Set("Content-Type", "application/json")
			w = httptest.NewRecorder()
			done := make(chan any, 1)
			go func() {
				defer func() { done <- recover() }()
				h.ServeHTTP(w, req)
			}()
			return w, <-done
		}
		for _, want := range []error{errors.New("broken"), http.ErrAbortHandler} {
			ends = func() { panic(want) }
			if w, recovered := ask(); recovered != any(want) || w.Body.Len() > 0 {
				t.Errorf("recovered %v, sent %q", recovered, w.Body)
			}
			r.paid(t, 0, 0)
		}
		ends = runtime.Goexit
		if w, _ := ask(); w.Body.Len() > 0 {
			t.Errorf("sent %q", w.Body)
		}
		r.paid(t, 0, 0)
		ends = nil
		if w, recovered := ask(); recovered != nil || w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "" {
			t.Errorf("again: %v, %d", recovered, w.Code)
		}
		r.paid(t, 1, 1)
	})
}

// TestMiddleware_cannotBeHeldBack: such responses are an error that says why, and
// nothing is written.
func TestMiddleware_cannotBeHeldBack(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		core, logs := observer.New(zap.ErrorLevel)
		for what, respond := range map[string]func(w http.ResponseWriter){
			"too large": func(w http.ResponseWriter) {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 101)); err == nil {
					t.Error("it was taken")
				}
			},
			"too large in parts": func(w http.ResponseWriter) {
				for range 11 {
					_, _ = w.Write(bytes.Repeat([]byte("x"), 10))
				}
			},
			"too large a header": func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 2<<20)) },
			"streams events":     func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream; charset=utf-8") },
			"trailers":           func(w http.ResponseWriter) { w.Header().Set("Trailer", "X-Sum") },
			"sends trailers":     func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")); w.Header().Set("Trailer:X-Sum", "1") },
			"switches protocols": func(w http.ResponseWriter) { w.WriteHeader(101) },
		} {
			at := r.serve(t, func(w http.ResponseWriter, req *http.Request) {
				_, flushes := w.(http.Flusher)
				_, hijacks := w.(http.Hijacker)
				if flushes || hijacks || http.NewResponseController(w).Flush() == nil {
					t.Error("it offers to stream")
				}
				if _, err := idemhttp.Tx(req.Context()).ExecContext(req.Context(), "INSERT INTO payment (cents) VALUES (1)"); err != nil {
					t.Error(err)
				}
				respond(w)
			}, idemhttp.WithLogger(zap.New(core)), idemhttp.WithMaxResponse(100))
			refused(t, what, r.post(t, at, "one-key", one), 500, "")
			entries := logs.TakeAll()
			said := ""
			if len(entries) == 1 {
				said = fmt.Sprint(entries[0].ContextMap())
			}
			if !strings.Contains(said, strings.Fields(what)[0]) || strings.Contains(said, "one-key") {
				t.Errorf("%s: logged %v", what, entries)
			}
		}
		r.paid(t, 0, 0)
	})
}

func TestMiddleware_sameKey_P11(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		r.db.SetMaxOpenConns(30)
		at := r.serve(t, pay)
		var mu sync.Mutex
		bodies := map[string]int{}
		first := 0
		var clients sync.WaitGroup
		for range 50 {
			clients.Go(func() {
				for {
					a, err := r.try(t.Context(), at, "one-key", one)
					if err != nil {
						t.Error(err)
						return
					}
					if a.status == http.StatusConflict {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					mu.Lock()
					defer mu.Unlock()
					if bodies[a.body]++; a.status != 201 {
						t.Errorf("%+v", a)
					}
					if !a.replayed() {
						first++
					}
					return
				}
			})
		}
		clients.Wait()
		if len(bodies) != 1 || first != 1 {
			t.Errorf("bodies %v, %d of them first", bodies, first)
		}
		r.paid(t, 1, 1)
	})
}

func TestMiddleware_lock(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		ours, theirs := r.locker(t), r.locker(t)
		var h http.HandlerFunc = pay
		at := r.serve(t, func(w http.ResponseWriter, req *http.Request) { h(w, req) }, docs,
			idemhttp.WithLock(ours, func(req *http.Request) ([]string, error) {
				if account := req.Header.Get("Account"); account != "" {
					return []string{account}, nil
				}
				return nil, nil
			}))
		lease, err := theirs.Acquire(t.Context(), "account")
		if err != nil {
			t.Fatal(err)
		}
		refused(t, "held", r.post(t, at, "one-key", one, "Account", "account"), 409, "held")
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if a := r.post(t, at, "one-key", one, "Account", "account"); a.status != 201 || a.replayed() != (i == 1) {
				t.Errorf("free: %+v", a)
			}
		}
		h = func(w http.ResponseWriter, req *http.Request) { pay(w, req); panic(http.ErrAbortHandler) }
		if _, err := r.try(t.Context(), at, "panics", one, "Account", "account"); err == nil {
			t.Error("a panic was answered")
		}
		h = pay
		if n := r.Held(t); n != 0 {
			t.Errorf("%d leases are held", n)
		}
		// A tenure that is over is refused at the confirmation.
		h = func(w http.ResponseWriter, req *http.Request) {
			pay(w, req)
			r.Exec(t, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6)")
		}
		if a := r.post(t, at, "lost", one, "Account", "account"); a.status != 409 {
			t.Errorf("lost: %+v", a)
		}
		r.paid(t, 1, 1)
		h = pay
		if a := r.post(t, at, "without", one); a.status != 201 {
			t.Errorf("without: %+v", a)
		}
		r.paid(t, 2, 2)
	})
}

// TestMiddleware_clientGone: a client that hangs up leaves nothing behind before
// COMMIT, and can ask again.
func TestMiddleware_clientGone(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		entered, left := make(chan struct{}), make(chan error, 1)
		gone := true
		at := r.serve(t, func(w http.ResponseWriter, req *http.Request) {
			if gone {
				_, _ = idemhttp.Tx(req.Context()).ExecContext(req.Context(), "INSERT INTO payment (cents) VALUES (1)")
				close(entered)
				<-req.Context().Done()
				left <- context.Cause(req.Context())
				return
			}
			pay(w, req)
		}, idemhttp.WithWait(10*time.Second))
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: one-key\r\nContent-Length: %d\r\n\r\n%s", len(one), one); err != nil {
			t.Fatal(err)
		}
		<-entered
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context ended with %v", err)
		}
		gone = false
		if a := r.post(t, at, "one-key", one); a.status != 201 || a.replayed() {
			t.Errorf("again: %+v", a)
		}
		r.paid(t, 1, 1)
	})
}

// TestMiddleware_databaseDown: it is a refusal that may be asked again.
func TestMiddleware_databaseDown(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		at := r.serve(t, pay)
		r.proxy.Cut()
		refused(t, "down", r.post(t, at, "one-key", one), 503, "")
		if err := r.proxy.Heal(); err != nil {
			t.Fatal(err)
		}
		if a := r.post(t, at, "one-key", one); a.status != 201 {
			t.Errorf("again: %+v", a)
		}
		r.paid(t, 1, 1)
	})
}

// TestMiddleware_bodyReadBefore: requests that cannot be told apart are refused.
func TestMiddleware_bodyReadBefore(t *testing.T) {
	onBothEngines(t, func(t *testing.T, r *rig) {
		inner := idemhttp.Middleware(r.guard)(http.HandlerFunc(pay))
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, bufio.NewReader(req.Body))
			inner.ServeHTTP(w, req)
		}))
		defer s.Close()
		refused(t, "read before", r.post(t, s.URL, "one-key", one), 500, "")
		r.paid(t, 0, 0)
	})
}

func TestMiddleware_invalid(t *testing.T) {
	for what, opt := range map[string]idemhttp.Option{
		"policy": idemhttp.WithPolicy(nil), "methods": idemhttp.WithMethods(), "scope": idemhttp.WithScope(nil), "body": idemhttp.WithMaxBody(-1),
		"response": idemhttp.WithMaxResponse(-1), "lock": idemhttp.WithLock(nil, func(*http.Request) ([]string, error) { return nil, nil }), "guard": nil,
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was taken")
				}
			}()
			r := &rig{}
			if what != "guard" {
				r = newRig(t, 1)
			}
			idemhttp.Middleware(r.guard, opt)
		})
	}
}
