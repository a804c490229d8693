// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// observed collects what an authority tells of its statements.
type observed struct {
	mu    sync.Mutex
	calls []driver.Call
}

func (o *observed) add(c driver.Call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, c)
}

// since returns the calls that failed and the number of those that did not, and
// forgets them.
func (o *observed) since() (failed []driver.Call, fine int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.calls {
		if c.Err != nil && driver.ClassOf(c.Err) != driver.ClassContention {
			failed = append(failed, c)
		} else {
			fine++
		}
	}
	o.calls = nil
	return failed, fine
}

// One connection breaks while 256 callers wait on it: the tier failed once.
func TestObserve_brokenConnection_isOneFailure(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		var seen observed
		a.Observe(seen.add)
		mustRelease(t, a, "ns/first", mustClaim(t, a, claimOf("ns/first")))
		if failed, fine := seen.since(); len(failed) > 0 || fine == 0 {
			t.Fatalf("a claim and a release: %d calls, failed %v", fine, failed)
		}
		p.LoseReply(1, stack.Having("SKIP LOCKED"), stack.HangUp)
		var line sync.WaitGroup
		for i := range 256 {
			line.Go(func() {
				key := fmt.Sprintf("ns/k%d", i)
				if g, err := a.Claim(t.Context(), claimOf(key)); err == nil {
					mustRelease(t, a, key, g)
				}
			})
		}
		line.Wait()
		failed, fine := seen.since()
		if len(failed) != 1 || fine == 0 {
			t.Errorf("%d calls were fine and %d failed, want one failed: %v", fine, len(failed), failed)
		}
	})
}

// What a server that is away costs is a failure for every try to reach it.
func TestObserve_noServer(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		var seen observed
		a.Observe(seen.add)
		p.Cut()
		if err := a.Ping(t.Context()); driver.ClassOf(err) != driver.ClassDown {
			t.Errorf("ping: %v, want class down", err)
		}
		failed, _ := seen.since()
		if len(failed) != 1 || failed[0].Op != "connect" || driver.ClassOf(failed[0].Err) != driver.ClassDown {
			t.Errorf("told of %v, want one connect that failed", failed)
		}
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
		if err := a.Ping(t.Context()); err != nil {
			t.Errorf("ping: %v", err)
		}
		if failed, fine := seen.since(); len(failed) > 0 || fine != 2 {
			t.Errorf("ping: %d calls, failed %v; want a row written and deleted", fine, failed)
		}
	})
}

// A claim that meets a lease of this process which is being given back says so.
func TestClaim_refusedByWhatIsLeaving(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		p := proxied(t, d)
		a := open(t, d.DSNAt(p.Addr()))
		g := mustClaim(t, a, claimOf("ns/k"))
		leaving := func() bool {
			_, err := a.Claim(t.Context(), claimOf("ns/k"))
			r, held := errors.AsType[*driver.Refusal](err)
			if !held || r.Busy {
				t.Fatalf("claim: %v, want a refusal", err)
			}
			return r.Leaving
		}
		if leaving() {
			t.Error("leaving, and nobody gives it back")
		}
		p.OnRequest(func(r stack.Request) stack.Action {
			if stack.Having("token = NULL")(r) {
				return stack.Swallow
			}
			return stack.Pass
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := a.Release(ctx, releaseOf("ns/k", g)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("release on a silent server: %v", err)
		}
		if !leaving() {
			t.Error("not leaving, and a release is under way")
		}
		p.OnRequest(nil)
	})
}
