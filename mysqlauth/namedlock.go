// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"crypto/sha256"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"
)

// What can come of a NamedLock, to be asked for with errors.Is.
var (
	// ErrNamedHeld means that another session has the lock. Nothing is wrong.
	ErrNamedHeld = errors.New("mysqlauth: another session has the lock")
	// ErrNamedLost means that the lock's connection is gone, and the lock with it.
	ErrNamedLost = errors.New("mysqlauth: the lock's connection is gone")
)

// NamedLocks are the server's own locks of names (GET_LOCK), for work that one
// process at a time should do and that writes nothing that has to be fenced: a
// migration, a scheduled report. A lock lives in a connection, which it takes from
// the pool for as long as it is held, and dies with it.
//
// There is no fence: who has lost a lock may write before he learns of it. On Galera
// and behind a failover every node has locks of its own, and behind a proxy that
// shares connections between clients they are anybody's. Where money moves, use a
// lease.
type NamedLocks struct {
	db        *sql.DB
	namespace string
	ping      time.Duration
}

// NamedLockOption changes a default of NamedLocks.
type NamedLockOption func(*NamedLocks) error

// WithNamedNamespace sets what precedes every name, so that services can share a
// server, on which names are everybody's: 1 to 32 of a-z, 0-9, "_" and "-". Default:
// "default".
func WithNamedNamespace(namespace string) NamedLockOption {
	return func(l *NamedLocks) error {
		if !namedNamespace.MatchString(namespace) {
			return fmt.Errorf("%w: namespace %q must match %v", ErrOption, namespace, namedNamespace)
		}
		l.namespace = namespace
		return nil
	}
}

// WithPingInterval sets how often a lock that is held is asked for, and so how late
// its holder learns that it is gone: from 10 ms to 1 min. Default: 1 s.
func WithPingInterval(d time.Duration) NamedLockOption {
	return func(l *NamedLocks) error {
		if d < 10*time.Millisecond || d > time.Minute {
			return fmt.Errorf("%w: ping interval %v, from 10ms to 1m are possible", ErrOption, d)
		}
		l.ping = d
		return nil
	}
}

var namedNamespace = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)

// NewNamedLocks sends nothing. Each lock that is held or waited for takes a
// connection of db.
func NewNamedLocks(db *sql.DB, opts ...NamedLockOption) (*NamedLocks, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrOption)
	}
	l := &NamedLocks{db: db, namespace: "default", ping: time.Second}
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt(l); err != nil {
			return nil, err
		}
	}
	return l, nil
}

const (
	// namedSlice is how long one GET_LOCK waits on the server, in seconds: so long it
	// may go on there after its caller has gone.
	namedSlice = 1
	// namedLimit bounds every other statement of a named lock.
	namedLimit = time.Second
)

// Acquire waits for the lock until ctx ends. The lock outlives ctx. Errors:
// [ErrNamedHeld] joined with the context's, [ErrKey], those of the server.
func (l *NamedLocks) Acquire(ctx context.Context, name string) (*NamedLock, error) {
	return l.acquire(ctx, name, true)
}

// TryAcquire looks once.
func (l *NamedLocks) TryAcquire(ctx context.Context, name string) (*NamedLock, error) {
	return l.acquire(ctx, name, false)
}

func (l *NamedLocks) acquire(ctx context.Context, name string, patient bool) (*NamedLock, error) {
	if name == "" || len(name) > maxKey {
		return nil, fmt.Errorf("%w: a name has 1 to %d bytes", ErrKey, maxKey)
	}
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, classify("named lock", err)
	}
	named := serverName(l.namespace, name)
	for {
		got, err := getLock(ctx, conn, named, patient)
		switch {
		case err != nil: // it may have been granted, and dies with the connection
			throwAway(conn)
			return nil, classify("named lock", err)
		case got:
			return l.hold(ctx, conn, name, named), nil
		case !patient:
			_ = conn.Close() // back to the pool
			return nil, fmt.Errorf("%w: %q", ErrNamedHeld, name)
		}
		if err := pause(ctx, rand.N(30*time.Millisecond)); err != nil {
			_ = conn.Close() // back to the pool
			return nil, fmt.Errorf("%w: %q: %w", ErrNamedHeld, name, err)
		}
	}
}

// getLock waits on the server for a slice, or not at all when ctx ends before.
func getLock(ctx context.Context, conn *sql.Conn, named string, patient bool) (bool, error) {
	seconds := 0
	if end, bounded := ctx.Deadline(); patient && (!bounded || time.Until(end) > 2*namedSlice*time.Second) {
		seconds = namedSlice
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+namedLimit)
	defer cancel()
	var got sql.NullInt64
	if err := conn.QueryRowContext(limited, "SELECT GET_LOCK(?, ?)", named, seconds).Scan(&got); err != nil {
		return false, err
	}
	if !got.Valid {
		return false, errors.New("the server could not tell: GET_LOCK is NULL")
	}
	return got.Int64 == 1, nil
}

// plainName is a name that no server folds, trims or refuses.
var plainName = regexp.MustCompile(`^[a-z0-9_./:-]{1,64}$`)

// serverName is the name by which the server knows a lock. Servers fold case and
// limit names to 64 characters: what they could take for another, or refuse, is
// hashed, and begins with what can be read of it.
func serverName(namespace, name string) string {
	full := namespace + "/" + name
	if plainName.MatchString(full) {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return full[:min(len(namespace), 16)] + "#" + hex.EncodeToString(sum[:20])
}

func throwAway(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	_ = conn.Close() // says that it is bad
}

// NamedLock is a lock that is held. All methods are safe for concurrent use.
type NamedLock struct {
	name  string
	named string
	conn  *sql.Conn

	ctx     context.Context
	cancel  context.CancelCauseFunc
	release sync.Once
	stop    chan struct{}
	watched chan struct{} // closed when nobody pings any more
}

func (l *NamedLocks) hold(ctx context.Context, conn *sql.Conn, name, named string) *NamedLock {
	n := &NamedLock{name: name, named: named, conn: conn, stop: make(chan struct{}), watched: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	go n.watch(l.ping)
	return n
}

// Name returns the name as it was given to Acquire.
func (n *NamedLock) Name() string { return n.name }

// Context ends with cause [ErrNamedLost] when the lock is gone, and with
// [context.Canceled] when it is released.
func (n *NamedLock) Context() context.Context { return n.ctx }

// Err is nil while the lock is held, as far as its last ping knows.
func (n *NamedLock) Err() error { return context.Cause(n.ctx) }

// watch asks regularly whether the lock is still this connection's.
func (n *NamedLock) watch(every time.Duration) {
	defer close(n.watched)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-n.stop:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), namedLimit)
		var ours sql.NullBool
		err := n.conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?) = CONNECTION_ID()", n.named).Scan(&ours)
		cancel()
		if err != nil || !ours.Bool {
			n.cancel(fmt.Errorf("%w: %q", ErrNamedLost, n.name))
			return
		}
	}
}

// Release gives the lock back, and its connection to the pool. It returns within ctx,
// or within two seconds; a ctx that has ended counts as none. What the server does not
// answer is [ErrNamedLost]: the connection is thrown away, and the lock ends with it.
// Later calls return nil.
func (n *NamedLock) Release(ctx context.Context) (err error) {
	n.release.Do(func() { err = n.giveBack(ctx) })
	return err
}

func (n *NamedLock) giveBack(ctx context.Context) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*namedLimit)
	defer cancel()
	close(n.stop)
	lost := n.Err() != nil
	defer n.cancel(context.Canceled)
	select {
	case <-n.watched:
		lost = lost || n.Err() != nil
	case <-ctx.Done():
		go func() { // the ping's end is near
			<-n.watched
			throwAway(n.conn)
		}()
		return fmt.Errorf("%w: %q: %w", ErrNamedLost, n.name, ctx.Err())
	}
	var freed sql.NullInt64
	err := n.conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", n.named).Scan(&freed)
	if lost || err != nil || freed.Int64 != 1 {
		throwAway(n.conn)
		return fmt.Errorf("%w: %q: %w", ErrNamedLost, n.name, errors.Join(err, n.Err()))
	}
	return n.conn.Close() // back to the pool
}
