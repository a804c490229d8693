// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tierlock/tierlock/idempotency/idemhttp"
)

// counter takes orders and payments over HTTP, each once per Idempotency-Key and
// under the locks that the workers take.
type counter struct {
	lock   *tierlock
	ledger *ledger
}

func (c counter) register(mux *http.ServeMux) {
	mux.Handle("POST /orders", c.once(orderKeys, c.order))
	mux.Handle("POST /payments", c.once(paymentKeys, c.payment))
}

// once has a handler run in the transaction that its answer is stored by.
func (c counter) once(keys func(*http.Request) ([]string, error), handler http.HandlerFunc) http.Handler {
	serve := idemhttp.Middleware(c.lock.guard, idemhttp.WithLock(c.lock.locker, keys))(handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.ledger.count(func(t *tally) { t.Served++ })
		serve.ServeHTTP(w, r)
	})
}

// order is what a client asks the shop for.
type order struct {
	Product  int `json:"product"`
	Quantity int `json:"quantity"`
}

func readOrder(r *http.Request) (o order, err error) {
	if err := read(r, &o); err != nil {
		return o, err
	}
	if o.Product < 0 || o.Product >= products || o.Quantity < 1 || o.Quantity > delivery {
		return o, fmt.Errorf("want a product from 0 to %d and a quantity from 1 to %d", products-1, delivery)
	}
	return o, nil
}

func orderKeys(r *http.Request) ([]string, error) {
	o, err := readOrder(r)
	return []string{lockKey(o.Product)}, err
}

func (c counter) order(w http.ResponseWriter, r *http.Request) {
	o, err := readOrder(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, tx := r.Context(), idemhttp.Tx(r.Context())
	var stock int
	err = tx.QueryRowContext(ctx, `SELECT stock FROM tierlock_demo_product WHERE id = ?`, o.Product).Scan(&stock)
	if err == nil && stock < o.Quantity {
		http.Error(w, fmt.Sprintf("only %d left", stock), http.StatusUnprocessableEntity)
		return
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE tierlock_demo_product SET stock = ? WHERE id = ?`, stock-o.Quantity, o.Product)
	}
	for range o.Quantity { // the books count them one by one
		if err == nil {
			_, err = tx.ExecContext(ctx, `INSERT INTO tierlock_demo_order (product) VALUES (?)`, o.Product)
		}
	}
	answer(w, map[string]int{"ordered": o.Quantity, "left": stock - o.Quantity}, err)
}

func readPayment(r *http.Request) (p payment, err error) {
	if err := read(r, &p); err != nil {
		return p, err
	}
	for _, id := range []int{p.From, p.To} {
		if id < 0 || id >= accounts {
			return p, fmt.Errorf("want accounts from 0 to %d", accounts-1)
		}
	}
	if p.From == p.To || p.Cents < 1 || p.Cents > deposit {
		return p, fmt.Errorf("want two accounts, and cents from 1 to %d", deposit)
	}
	return p, nil
}

func paymentKeys(r *http.Request) ([]string, error) {
	p, err := readPayment(r)
	return p.keys(), err
}

func (c counter) payment(w http.ResponseWriter, r *http.Request) {
	p, err := readPayment(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.ID = r.Header.Get("Idempotency-Key")
	ctx, tx := r.Context(), idemhttp.Tx(r.Context())
	left, err := balances(ctx, tx, p)
	if err == nil && left.From < p.Cents {
		http.Error(w, "no funds", http.StatusUnprocessableEntity)
		return
	}
	left.From -= p.Cents
	left.To += p.Cents
	if err == nil {
		_, err = book(ctx, tx, p, left)
	}
	answer(w, left, err)
}

func read(r *http.Request, into any) error {
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(into); err != nil {
		return fmt.Errorf("want a JSON object: %w", err)
	}
	return nil
}

// answer is stored when it is a success. An error of the database rolls back, and the
// same key may be tried again.
func answer(w http.ResponseWriter, with any, err error) {
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the database does not serve", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(with) // into memory, until COMMIT
}
