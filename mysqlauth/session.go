// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// sessions hands out connections on which every statement of this package
// means the same, whatever the server's defaults, the DSN and the pool are.
type sessions struct {
	db      *sql.DB
	tables  tables
	metrics *metrics        // nil: none
	life    context.Context // ends what is still running when Close gives up
	spare   chan struct{}   // bounds what is not a lane
	waits   chan struct{}   // bounds what of that waits for a locked row

	observer atomic.Pointer[driver.Observer]

	demotions atomic.Uint64 // how often a server turned out to be read-only
	flush     func()        // closes the pool's idle connections; nil when the pool was given
	age       time.Duration // a lane gives an older session up

	mu       sync.Mutex
	failures map[string]error // of the last exchange of an operation, if it failed
}

// maxAge bounds how long a connection is kept to a server that is no longer the
// one the DSN leads to, and whose answers do not say so: reads of an old primary.
const maxAge = time.Minute

// demoted gives up every connection made so far when one of them leads to a
// read-only server: those to an old primary answer reads for ever.
func (p *sessions) demoted() {
	p.demotions.Add(1)
	if p.flush != nil {
		p.flush()
	}
}

// observe tells of an exchange that began at some time and has ended.
func (p *sessions) observe(op string, began time.Time, err error) {
	p.remember(op, err)
	p.metrics.statement(op, began)
	if tell := p.observer.Load(); tell != nil {
		(*tell)(driver.Call{Op: op, Took: time.Since(began), Err: classify(op, err)})
	}
}

// remember keeps how the last exchange of an operation failed. A statement that
// was rolled back because of others did not: the server answered.
func (p *sessions) remember(op string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || driver.ClassOf(classify(op, err)) == driver.ClassContention {
		delete(p.failures, op)
		return
	}
	p.failures[op] = err
}

// unanswered is the error of a call whose time is up. Why the operation last
// failed, if it did, says more than that.
func (p *sessions) unanswered(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &driver.Error{Tier: "mysql", Op: op, Class: driver.ClassUnknown, Err: errNoAnswer}
	if last, ok := errors.AsType[*driver.Error](classify(op, p.failures[op])); ok {
		e.Advice, e.Err = last.Advice, fmt.Errorf("%w; before that: %w", errNoAnswer, last.Err)
		if last.Class == driver.ClassDown || last.Class == driver.ClassConfig {
			e.Class = last.Class
		}
	}
	return e
}

// session is one connection, prepared. It belongs to one goroutine.
//
// A caller's context never reaches a session: its end would break a connection
// and a statement that others share. Statements have limits of their own.
type session struct {
	from  *sessions
	op    string // what it was taken for
	conn  *sql.Conn
	clock clock
	table string // the lease table, qualified and quoted
	bad   bool   // its state is not certain: discard

	taken     time.Time
	demotions uint64 // at that time
}

// stale reports that the connection may lead to a server which was replaced.
func (s *session) stale() bool {
	return s.demotions != s.from.demotions.Load() || time.Since(s.taken) > s.from.age
}

// preparations make sessions alike. They cost a round trip each, paid when a
// lane wakes after a second of idleness.
var preparations = []string{
	// A word of its own: the variable has another name on MariaDB 10.11.
	"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
	// The waits are for rows and for a table that somebody alters. The modes
	// undo what changes the meaning of an assignment, or refuses an UPDATE.
	"SET SESSION autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, time_zone = '+00:00', " +
		"sql_mode = 'STRICT_ALL_TABLES', sql_safe_updates = 0, completion_type = 0",
}

// take waits at most limit for a session.
func (p *sessions) take(op string, limit time.Duration) (s *session, err error) {
	began := time.Now()
	defer func() {
		if err != nil {
			p.observe("connect", began, err)
			p.remember(op, err)
		}
	}()
	ctx, cancel := context.WithTimeout(p.life, limit)
	defer cancel()
	demotions := p.demotions.Load()
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return nil, p.failed(ctx, err)
	}
	s = &session{from: p, op: op, conn: conn, taken: began, demotions: demotions}
	if err := s.prepare(ctx); err != nil {
		err = p.failed(ctx, err)
		s.bad = true
		s.giveBack()
		return nil, err
	}
	return s, nil
}

func (p *sessions) failed(ctx context.Context, err error) error {
	switch {
	case p.life.Err() != nil:
		err = ErrClosed
	case ctx.Err() != nil:
		err = errNoAnswer
	}
	return unreachable("connect", err)
}

func (s *session) prepare(ctx context.Context) error {
	for _, statement := range preparations {
		if _, err := s.conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	var schema sql.NullString
	sent := time.Now()
	var micros int64
	if err := s.conn.QueryRowContext(ctx, "SELECT DATABASE(), "+serverNow).Scan(&schema, &micros); err != nil {
		return err
	}
	if !schema.Valid {
		return &driver.Error{
			Tier: "mysql", Op: "connect", Class: driver.ClassConfig,
			Advice: "name the database in the DSN", Err: errors.New("no database is chosen"),
		}
	}
	s.clock = clock{micros: micros, sent: sent}
	s.table = quote(schema.String) + "." + s.from.tables.lease
	return nil
}

// borrow is take for work outside the lanes, bounded so that the lanes always
// find a connection. ctx bounds the wait for it only.
func (p *sessions) borrow(ctx context.Context, op string, limit time.Duration) (*session, error) {
	select {
	case p.spare <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.life.Done():
		return nil, classify("connect", ErrClosed)
	}
	s, err := p.take(op, limit)
	if err != nil {
		<-p.spare
	}
	return s, err
}

// mayWait takes a place among those who wait on a borrowed session for a locked
// row; waited gives it back. It is false when there is none: rows may stay
// locked for long, and work that waits for none would find no session.
func (p *sessions) mayWait() bool {
	select {
	case p.waits <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p *sessions) waited() { <-p.waits }

func (p *sessions) giveBackBorrowed(s *session) {
	s.giveBack()
	<-p.spare
}

// giveBack returns the connection to the pool, or closes it when its state is
// not certain.
func (s *session) giveBack() {
	if s.bad {
		// Both errors say that the connection is gone, which is the aim.
		_ = s.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	_ = s.conn.Close()
}

// exec runs a statement within limit, which is a hard bound: when it ends the
// connection is closed under a server that says nothing.
func (s *session) exec(limit time.Duration, statement string, args ...any) (affected int64, err error) {
	result, err := s.run(limit, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// run is exec for a statement of which more is wanted.
func (s *session) run(limit time.Duration, statement string, args ...any) (result sql.Result, err error) {
	began := time.Now()
	defer func() { s.from.observe(s.op, began, err) }()
	ctx, cancel := context.WithTimeout(s.from.life, limit)
	defer cancel()
	if result, err = s.conn.ExecContext(ctx, statement, args...); err != nil {
		return nil, s.failed(ctx, err)
	}
	return result, nil
}

// query is run for a statement with rows; each is called with every row.
func (s *session) query(limit time.Duration, each func(*sql.Rows) error, statement string, args ...any) (err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.from.life, limit)
	defer cancel()
	defer func() {
		if err != nil {
			err = s.failed(ctx, err)
		}
		s.from.observe(s.op, began, err)
	}()
	rows, err := s.conn.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// failed decides whether the connection can be used again. One that reached a
// server which does not serve any more cannot: the next one may reach another.
// A limit of ours that ended shows as its own error, in whichever way the
// connection died of it.
func (s *session) failed(ctx context.Context, err error) error {
	err = withhold(err)
	m := meaningOf(err)
	if !m.proof || m.class == driver.ClassDown || m.class == driver.ClassTransient {
		s.bad = true
	}
	if m.advice == adviceReadOnly {
		s.from.demoted()
	}
	switch {
	case m.proof || ctx.Err() == nil:
		return err
	case s.from.life.Err() != nil:
		return errCut
	default:
		return errNoAnswer
	}
}

// again repeats a statement that the server rolled back because of other
// transactions, at most three times. Whatever it returns, an answer that it
// repeated proved that nothing had happened.
func (s *session) again(retried *atomic.Uint64, statement func() error) error {
	for try := 0; ; try++ {
		err := statement()
		if err == nil || try == retries || duplicate(err) || !rolledBack(err) || s.bad {
			return err
		}
		retried.Add(1)
		s.from.metrics.retry(err)
		if pause(s.from.life, jitter(try)) != nil {
			return err
		}
	}
}
