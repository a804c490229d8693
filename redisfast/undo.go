// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

const (
	// settleAfter is how much later a deletion is repeated after a request whose
	// outcome nobody knows: a closed socket does not stop a packet that waits in
	// a proxy or in the server's backlog.
	settleAfter = time.Second

	// undoTries with pauses of undoPause doubling to undoPauseMax are about four
	// seconds; what Redis did not take in that time is left to its time to live.
	undoTries    = 8
	undoPause    = 50 * time.Millisecond
	undoPauseMax = time.Second

	undoBatch = 500
	// undoQueue bounds what an outage may pile up.
	undoQueue = 10_000
)

// markID names one mark: a token is never planted twice for a key by two calls
// that do not know of each other.
type markID struct {
	key   string
	token driver.Token
}

// undoer deletes in the background what calls left behind that ended without an
// answer or without a caller. Each deletion compares the token, so it is never
// too late and may be repeated. One goroutine serves all and ends when there is
// nothing left to do.
type undoer struct {
	f     *Filter
	base  context.Context // ends when Close gives up
	cease context.CancelFunc
	kick  chan struct{}

	mu      sync.Mutex
	tasks   []task
	doubts  map[markID]*doubt
	running bool
	closing bool
	lost    int // tasks given up since the goroutine started
}

// task is a deletion that is due at a time, or the end of a doubt.
type task struct {
	id     markID
	wake   bool
	settle bool
	due    time.Time
	tries  int
}

// doubt counts the planting requests of one mark that may still reach the
// server. When the mark is cleared meanwhile, it is cleared once more at the end.
type doubt struct {
	requests int
	cleared  bool
	wake     bool
}

func newUndoer(f *Filter) *undoer {
	base, cease := context.WithCancel(context.Background())
	return &undoer{
		f: f, base: base, cease: cease,
		kick:   make(chan struct{}, 1),
		doubts: make(map[markID]*doubt),
	}
}

// mark takes back a mark whose caller does not know of it. Waiters are told,
// since it kept them away. err is what the request ended with, if it failed.
func (u *undoer) mark(id markID, err error) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(task{id: id, wake: true, due: now})
	if err != nil && !isReply(err) {
		u.add(task{id: id, wake: true, due: now.Add(settleAfter)})
	}
}

// clear repeats a deletion that failed with err, unless a person is needed.
func (u *undoer) clear(id markID, wake bool, err error) {
	if classify(err).class == driver.ClassConfig {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(task{id: id, wake: wake, due: time.Now().Add(undoPause), tries: 1})
}

// planting begins requests that may plant marks which their caller keeps.
func (u *undoer) planting(ids ...markID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		d := u.doubts[id]
		if d == nil {
			d = new(doubt)
			u.doubts[id] = d
		}
		d.requests++
	}
}

// planted ends what planting began. After an error the requests may still be on
// their way.
func (u *undoer) planted(err error, ids ...markID) {
	due := time.Now().Add(settleAfter)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		if err != nil && !isReply(err) {
			u.add(task{id: id, settle: true, due: due})
		} else {
			u.resolve(id)
		}
	}
}

// clearing notes, before a deletion is sent, that the mark shall not stand.
func (u *undoer) clearing(id markID, wake bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if d := u.doubts[id]; d != nil {
		d.cleared = true
		d.wake = d.wake || wake
	}
}

// resolve ends one request of a doubt. u.mu is held.
func (u *undoer) resolve(id markID) {
	d := u.doubts[id]
	if d == nil {
		return
	}
	if d.requests--; d.requests > 0 {
		return
	}
	delete(u.doubts, id)
	if d.cleared {
		u.add(task{id: id, wake: d.wake, due: time.Now()})
	}
}

// add queues a task. u.mu is held. It is called from work that Close waits for,
// so the goroutine may be added to it.
func (u *undoer) add(t task) {
	if len(u.tasks) >= undoQueue {
		u.lost++
		if t.settle {
			delete(u.doubts, t.id)
		}
		return
	}
	u.tasks = append(u.tasks, t)
	if !u.running {
		u.running = true
		u.f.work.Add(1)
		go u.run()
		return
	}
	u.nudge()
}

func (u *undoer) nudge() {
	select {
	case u.kick <- struct{}{}:
	default:
	}
}

// hurry makes everything due, since Close waits.
func (u *undoer) hurry() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closing = true
	u.nudge()
}

// abandon gives up and returns how many marks it leaves.
func (u *undoer) abandon() int {
	u.cease()
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.tasks)
}

func (u *undoer) run() {
	defer u.f.leave()
	for {
		batch, pause := u.take()
		if len(batch) > 0 {
			u.send(batch)
			continue
		}
		if pause < 0 {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-u.kick:
			timer.Stop()
		case <-u.base.Done():
			timer.Stop()
		}
	}
}

// take removes the deletions that are due and settles doubts that are over; with
// nothing due it says how long there is to wait, or -1 when run shall end.
func (u *undoer) take() (batch []task, pause time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.base.Err() != nil {
		u.lost += len(u.tasks)
		u.tasks = nil
	}
	now := time.Now()
	pause = -1
	tasks := u.tasks
	u.tasks = nil
	for _, t := range tasks {
		wait := t.due.Sub(now)
		if u.closing && t.tries == 0 {
			wait = 0
		}
		switch {
		case wait > 0 || len(batch) == undoBatch:
			u.tasks = append(u.tasks, t)
		case t.settle:
			u.resolve(t.id) // may append a deletion that is due at once
		default:
			batch = append(batch, t)
		}
	}
	for _, t := range u.tasks {
		if wait := max(t.due.Sub(now), 0); pause < 0 || wait < pause {
			pause = wait
		}
	}
	if len(batch) == 0 && len(u.tasks) == 0 {
		u.running = false
		if u.lost > 0 {
			u.f.log.Warn("redis marks are left to their time to live", zap.Int("marks", u.lost))
			u.lost = 0
		}
	}
	return batch, pause
}

// send deletes the marks of a batch, and queues again what failed.
func (u *undoer) send(batch []task) {
	calls := make([]invocation, len(batch))
	for i, t := range batch {
		calls[i] = u.f.deletion(t.id, t.wake)
	}
	ctx, cancel := context.WithTimeout(u.base, u.f.timeout)
	defer cancel()
	cmds := clearScript.runAll(ctx, u.f.client, calls)

	u.mu.Lock()
	defer u.mu.Unlock()
	for i, t := range batch {
		err := cmds[i].Err()
		if err == nil {
			continue
		}
		t.tries++
		if t.tries >= undoTries || classify(err).class == driver.ClassConfig {
			u.lost++
			continue
		}
		t.due = time.Now().Add(min(undoPause<<(t.tries-1), undoPauseMax))
		u.add(t)
	}
}

// isReply reports that the server answered with an error.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}
