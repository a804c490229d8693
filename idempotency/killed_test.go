// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
)

// killing kills a server once, at a boundary between statements.
type killing struct {
	t      *testing.T
	server *stack.Server
	armed  atomic.Bool
	killed chan struct{}
}

func (k *killing) strike() stack.Action {
	if !k.armed.CompareAndSwap(true, false) {
		return stack.Pass
	}
	if err := k.server.Kill(); err != nil {
		k.t.Errorf("kill: %v", err)
	}
	close(k.killed)
	return stack.HangUp
}

// boundaries are where a server may die, as what a request holds.
var boundaries = []string{"INSERT INTO `idempotency`", "UPDATE stock", "SELECT n FROM stock", "SET state = ?, result", "COMMIT", "FOR UPDATE NOWAIT"}

// at tells a statement by what it holds.
func at(r stack.Request, boundary string) bool {
	if boundary == "COMMIT" { // which is in READ COMMITTED, too
		return isCommit(r)
	}
	return executes(r) && r.Has(boundary)
}

// TestOnce_serverKilled_P11 has 200 callers ask for the same thing, whose server is
// killed before or after a statement of the transaction, or anywhere, and comes back.
// Callers ask until they are answered.
func TestOnce_serverKilled_P11(t *testing.T) {
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := &shop{Tiers: tiers.On(t, stack.SharedRedis(t), stack.StartSQL(t, engine))}
			s.Exec(t, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)")
			s.Exec(t, "INSERT INTO stock VALUES (1, 1000)")
			s.proxy = stack.StartProxy(t, s.Database.Server())
			s.db = s.pool(t, s.user(t, "b", "SELECT, INSERT, UPDATE, DELETE ON %s.stock"))
			s.db.SetMaxOpenConns(50)
			g := s.guard(t)
			rounds := scaled(2, 60)
			for round := range rounds {
				s.killedRound(t, g, round)
				s.stock(t, 1000-round-1)
				s.completed(t, round+1)
			}
		})
	}
}

func (s *shop) killedRound(t *testing.T, g *idempotency.Guard, round int) {
	t.Helper()
	k := &killing{t: t, server: s.Database.Server(), killed: make(chan struct{})}
	boundary, anywhere := boundaries[rand.IntN(len(boundaries))], rand.Int64N(600)
	where := fmt.Sprint("after request ", anywhere)
	var requests atomic.Int64
	switch rand.IntN(3) {
	case 0:
		where = "before " + boundary
		s.proxy.OnRequest(func(r stack.Request) stack.Action {
			if at(r, boundary) {
				return k.strike()
			}
			return stack.Pass
		})
	case 1:
		where = "after " + boundary
		s.proxy.OnReply(func(r stack.Request, _ stack.Reply) stack.Action {
			if at(r, boundary) {
				return k.strike()
			}
			return stack.Pass
		})
	default:
		s.proxy.OnReply(func(stack.Request, stack.Reply) stack.Action {
			if requests.Add(1) > anywhere {
				return k.strike()
			}
			return stack.Pass
		})
	}
	k.armed.Store(true)
	restarted := make(chan error, 1)
	go func() {
		<-k.killed
		restarted <- s.Database.Server().Restart(context.Background())
	}()
	var mu sync.Mutex
	answers := make(map[string]int)
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
				result, err := g.Once(t.Context(), nil, buy(fmt.Sprint("order-", round)), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
					body, err := sale(ctx, tx)
					return fmt.Appendf(body, " by %x", rand.Uint64()), err // no run's answer is another's
				})
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					answers[string(result.Body)]++
					return
				}
				if time.Now().After(end) {
					t.Errorf("killed %s: not answered in a minute: %v", where, err)
					return
				}
			}
		})
	}
	callers.Wait()
	s.proxy.OnRequest(nil)
	s.proxy.OnReply(nil)
	if k.armed.CompareAndSwap(true, false) {
		_ = s.Database.Server().Kill() // all were answered before
		close(k.killed)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if len(answers) != 1 {
		t.Errorf("killed %s: answers %v", where, answers)
	}
	t.Logf("killed %s", where)
}
