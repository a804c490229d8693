// SPDX-License-Identifier: Apache-2.0

package idemhttp_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/idempotency/idemhttp"
	"github.com/tierlock/tierlock/internal/stack"
)

// A client that does not know what came of its POST sends it again.
func Example() {
	db, done := bank()
	defer done()
	guard, err := idempotency.New(db)
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(context.Background()) //nolint:errcheck // the process ends
	payments := func(w http.ResponseWriter, r *http.Request) {
		var payment struct{ Cents int }
		if err := json.NewDecoder(r.Body).Decode(&payment); err != nil || payment.Cents <= 0 {
			http.Error(w, "cents, please", http.StatusBadRequest)
			return
		}
		result, err := idemhttp.Tx(r.Context()).ExecContext(r.Context(), "INSERT INTO payment (cents) VALUES (?)", payment.Cents)
		if err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		id, _ := result.LastInsertId() // the driver has it
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d of %d cents", id, payment.Cents)
	}
	tenant := func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil } // who was authenticated
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idemhttp.Middleware(guard, idemhttp.WithScope(tenant))(http.HandlerFunc(payments)))

	post := func(key, body string) {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Tenant", "acme")
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), strings.TrimSpace(w.Body.String()))
	}
	post(`"8e03978e"`, `{"cents": 100}`)
	post(`"8e03978e"`, `{"cents": 100}`)
	post(`"8e03978e"`, `{"cents": 999}`)
	// Output:
	// 201  payment 1 of 100 cents
	// 201 true payment 1 of 100 cents
	// 422  {"type":"about:blank","title":"Idempotency-Key is already used","status":422,"detail":"This key was used for another request. Use a new key for a new request."}
}

// bank is a database with its tables, for an example.
func bank() (db *sql.DB, done func()) {
	tb := &noTest{}
	d := stack.SharedSQL(tb, stack.MariaDB).CreateDatabase(tb)
	db, err := sql.Open("mysql", d.AdminDSN())
	if err != nil {
		log.Fatal(err)
	}
	if err := idempotency.EnsureSchema(context.Background(), db); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(context.Background(), "CREATE TABLE payment (id INT PRIMARY KEY AUTO_INCREMENT, cents INT NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	return db, func() {
		_ = db.Close()
		for _, f := range tb.cleanup {
			f()
		}
	}
}

// noTest is what package stack asks of a test.
type noTest struct{ cleanup []func() }

func (*noTest) Helper()                           {}
func (*noTest) Name() string                      { return "Example" }
func (*noTest) Context() context.Context          { return context.Background() }
func (n *noTest) Cleanup(f func())                { n.cleanup = append(n.cleanup, f) }
func (*noTest) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (*noTest) Skipf(format string, args ...any)  { log.Fatalf(format, args...) }
