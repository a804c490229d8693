// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
)

// TestReserve_killedAtCommit_J7 has a process die after it has sent a COMMIT, which
// arrives after its death, or never. Nobody goes on before that is settled, and then
// from where it has come to.
func TestReserve_killedAtCommit_J7(t *testing.T) {
	onBothEngines(t, func(t *testing.T, s *shop) {
		s.guardTables(t)
		s.Exec(t, "INSERT INTO stock VALUES (2, 0)")
		l := &ledger{}
		provider := httptest.NewServer(l)
		defer provider.Close()
		rounds := scaled(1, 20)
		s.restock(t, rounds*6)
		peer := s.newGuard(t, s.db)
		t.Run("commits", func(t *testing.T) {
			for round := range rounds {
				for at := range 3 { // the reservation, the charge, the mail
					for _, arrives := range []bool{true, false} {
						t.Run(fmt.Sprintf("%d/arrives=%v", at, arrives), func(t *testing.T) {
							t.Parallel()
							s.killedAtCommit(t, peer, l, provider.URL, fmt.Sprintf("order-%d-%d-%v", round, at, arrives), at, arrives)
						})
					}
				}
			}
		})
		s.stock(t, 0)
		s.completed(t, rounds*6)
		if got := s.Count(t, "SELECT n FROM stock WHERE id = 2"); got != rounds*6*1000 {
			t.Errorf("the last step was kept %d times, want %d", got/1000, rounds*6)
		}
	})
}

func (s *shop) killedAtCommit(t *testing.T, peer *idempotency.Guard, l *ledger, provider, key string, at int, arrives bool) {
	t.Helper()
	proxy := stack.StartProxy(t, s.Database.Server())
	cfg, err := mysql.ParseDSN(s.business)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Addr = proxy.Addr()
	arrive, sent := make(chan struct{}), make(chan struct{})
	var commits atomic.Int64
	proxy.OnRequest(func(r stack.Request) stack.Action {
		if isCommit(r) && commits.Add(1) == int64(at+1) {
			close(sent)
			return stack.HoldUntil(arrive)
		}
		return stack.Pass
	})
	first := startBuyer(t, cfg.FormatDSN(), provider, key, "")
	select {
	case <-sent:
	case <-time.After(time.Minute):
		t.Fatalf("no COMMIT was sent; it said %q", first.says())
	}
	first.kill()
	never := idempotency.Step{Name: "charged", Call: func(context.Context, idempotency.Call) ([]byte, error) {
		t.Error("a step was done while COMMIT was under way")
		return nil, nil
	}}
	if _, err := peer.Reserve(t.Context(), nil, buy(key), never); !errors.Is(err, idempotency.ErrInProgress) {
		t.Errorf("while COMMIT is under way: %v, want ErrInProgress", err)
	}
	if !arrives {
		proxy.Drop()
	}
	close(arrive)
	said := startBuyer(t, s.business, provider, key, "").says()
	if want := fmt.Sprintf("answered %v mail done", arrives && at == 2); said != want {
		t.Errorf("the next attempt: %q, want %q", said, want)
	}
	charges, mails, attempts := 1, 1, 2
	switch {
	case !arrives && at == 0, arrives && at == 2:
		attempts = 1
	case !arrives && at == 1:
		charges = 2
	case !arrives && at == 2:
		mails = 2
	}
	s.row(t, "in the end", key, fmt.Sprintf("2|%d|charged|somebody|for ever|ended|mail done", attempts))
	l.called(t, key, "charge", charges)
	l.called(t, key, "mail", mails)
}
