// SPDX-License-Identifier: Apache-2.0

package idemhttp_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/idempotency/idemhttp"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// rig is a bank on a real server.
type rig struct {
	*tiers.Tiers
	db     *sql.DB
	guard  *idempotency.Guard
	client *http.Client
	proxy  *stack.Proxy
}

func onBothEngines(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newRig(t, engine))
		})
	}
}

func newRig(t *testing.T, engine stack.Engine) *rig {
	t.Helper()
	r := &rig{Tiers: tiers.New(t, engine), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(r.client.CloseIdleConnections)
	if err := idempotency.EnsureSchema(t.Context(), r.Admin); err != nil {
		t.Fatal(err)
	}
	r.Exec(t, "CREATE TABLE payment (id INT PRIMARY KEY AUTO_INCREMENT, cents INT NOT NULL)")
	name := r.Database.Name + "b"
	r.Exec(t, fmt.Sprintf("CREATE USER %s@'%%' IDENTIFIED BY 'business'", name))
	t.Cleanup(func() { r.Exec(t, fmt.Sprintf("DROP USER %s@'%%'", name)) })
	r.Exec(t, fmt.Sprintf("GRANT SELECT, UPDATE ON %s.lease TO %s@'%%'", r.Database.Name, name))
	for _, table := range []string{"payment", "idempotency", "idempotency_fence"} {
		r.Exec(t, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO %s@'%%'", r.Database.Name, table, name))
	}
	r.proxy = stack.StartProxy(t, r.Database.Server())
	cfg, err := mysql.ParseDSN(r.Database.DSNAt(r.proxy.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd, cfg.Logger = name, "business", &mysql.NopLogger{}
	if r.db, err = sql.Open("mysql", cfg.FormatDSN()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.db.Close() })
	if r.guard, err = idempotency.New(r.db, idempotency.WithReapInterval(0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.guard.Close(context.Background()) })
	return r
}

func (r *rig) locker(t *testing.T) *tier.Locker {
	t.Helper()
	n := r.Node(t)
	l, err := tier.New(n.Filter, n.Authority, tier.WithTTL(2*time.Second), tier.WithWait(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := l.Check(t.Context()); err != nil { // not within the second of the first call
		t.Fatal(err)
	}
	return l
}

// serve is a server whose handler is behind the middleware.
func (r *rig) serve(t *testing.T, h http.HandlerFunc, opts ...idemhttp.Option) string {
	t.Helper()
	s := httptest.NewServer(idemhttp.Middleware(r.guard, opts...)(h))
	t.Cleanup(s.Close)
	return s.URL
}

// pay is the handler of POST /payments.
func pay(w http.ResponseWriter, req *http.Request) {
	var payment struct{ Cents int }
	if err := json.NewDecoder(req.Body).Decode(&payment); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	done, err := idemhttp.Tx(req.Context()).ExecContext(req.Context(), "INSERT INTO payment (cents) VALUES (?)", payment.Cents)
	if err != nil {
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	id, _ := done.LastInsertId()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", id))
	w.Header().Set("Set-Cookie", "session=secret")
	w.Header().Set("Connection", "X-Hop")
	w.Header().Set("X-Hop", "1")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"id":%d,"at":%d}`, id, time.Now().UnixNano())
}

// answer is a response, read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// post asks with a key, or with a whole header.
func (r *rig) post(t *testing.T, url, key, body string, header ...string) answer {
	t.Helper()
	a, err := r.try(t.Context(), url, key, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (r *rig) try(ctx context.Context, url, key, body string, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return r.do(req)
}

func (r *rig) do(req *http.Request) (answer, error) {
	res, err := r.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }() // it was read
	var b bytes.Buffer
	_, err = io.Copy(&b, res.Body)
	return answer{res.StatusCode, res.Header, b.String()}, err
}

// paid checks what was written.
func (r *rig) paid(t *testing.T, payments, stored int) {
	t.Helper()
	if n := r.Count(t, "SELECT COUNT(*) FROM payment"); n != payments {
		t.Errorf("%d payments, want %d", n, payments)
	}
	if n := r.Count(t, "SELECT COUNT(*) FROM idempotency"); n != stored {
		t.Errorf("%d requests are stored, want %d", n, stored)
	}
}

// refused checks a refusal's form.
func refused(t *testing.T, what string, a answer, status int, name string) {
	t.Helper()
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	if a.status != status || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: %d, %q, want %d", what, a.status, a.body, status)
		return
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != status || p.Title == "" || p.Type == "" {
		t.Errorf("%s: problem %q, %v", what, a.body, err)
	}
	if name != "" && !strings.HasSuffix(p.Type, "#"+name) {
		t.Errorf("%s: problem %q, want %q", what, a.body, name)
	}
	for _, secret := range []string{"sql", "SQL", "tier:", "idempotency:", "business", "secret", "one-key"} {
		if strings.Contains(a.body, secret) {
			t.Errorf("%s: it tells %q: %s", what, secret, a.body)
		}
	}
	if retry := a.header.Get("Retry-After"); (retry != "") != (status == 409 || status == 503) || retry == "0" {
		t.Errorf("%s: Retry-After %q", what, retry)
	}
}
