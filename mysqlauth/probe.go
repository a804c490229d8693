// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/tier/driver"
)

// Check implements [driver.Authority]: it asks whether the server keeps what it
// commits and whether every statement reaches the same one, and takes one
// lease through its life. Its error joins all findings, each a *[driver.Error]
// that says what to do.
//
// A database that a [Sharded] shares keys out to is refused: alone it would be
// asked for the keys of the others as well.
func (a *Authority) Check(ctx context.Context) error { return a.checkAs(ctx, false) }

func (a *Authority) checkAs(ctx context.Context, shard bool) error {
	return a.detached(ctx, "check", func(ctx context.Context) error {
		if err := a.check(ctx, shard); err != nil {
			return err
		}
		return a.roundTrip(ctx)
	})
}

// check puts the questions, on one session. It stops where an answer makes
// further ones pointless.
func (a *Authority) check(ctx context.Context, shard bool) error {
	s, err := a.sessions.borrow(ctx, "check", a.timeout)
	if err != nil {
		return err
	}
	defer a.sessions.giveBackBorrowed(s)
	p := &probe{Authority: a, s: s}
	questions := []func() error{p.variables, p.schema, p.canary, p.floor}
	if !shard {
		questions = slices.Insert(questions, 2, p.alone) // the tables are there
	}
	for _, ask := range questions {
		if err := ask(); err != nil {
			return errors.Join(append(p.findings, classify("check", err))...)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if p.pointless {
			break
		}
	}
	return errors.Join(p.findings...)
}

// probe collects what is wrong.
type probe struct {
	*Authority
	s        *session
	findings []error
	// pointless says that further questions would only repeat the findings.
	pointless bool
}

func (p *probe) found(class driver.Class, advice, format string, args ...any) {
	p.findings = append(p.findings, &driver.Error{
		Tier: "mysql", Op: "check", Class: class, Advice: advice, Err: fmt.Errorf(format, args...),
	})
}

// unsafe is found for a server that may forget, unless that was asked for.
func (p *probe) unsafe(name, value, want string) {
	if p.opts.unsafe {
		p.log.Warn("the MySQL server may forget what it committed: fences may be given twice",
			zap.String("variable", name), zap.String("value", value), zap.String("want", want))
		return
	}
	p.found(driver.ClassConfig, "set it to "+want+", or accept that fences may be given twice with WithUnsafeDurability",
		"%s is %s: the server may forget what it committed", name, value)
}

// variables asks for those that exist: super_read_only is MySQL's, and where
// there is no binary log its settings mean nothing.
func (p *probe) variables() error {
	v := make(map[string]string)
	err := p.s.query(p.timeout, func(rows *sql.Rows) error {
		var name, value string
		err := rows.Scan(&name, &value)
		v[strings.ToLower(name)] = strings.ToUpper(value)
		return err
	}, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only', "+
		"'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format')")
	if err != nil {
		return err
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if value, known := v[name]; known && value != "OFF" && value != "0" {
			p.found(driver.ClassDown, adviceReadOnly, "the server is read-only: %s is %s", name, value)
		}
	}
	if value := v["innodb_flush_log_at_trx_commit"]; value != "1" {
		p.unsafe("innodb_flush_log_at_trx_commit", value, "1")
	}
	if v["log_bin"] != "ON" && v["log_bin"] != "1" {
		return nil
	}
	if value := v["sync_binlog"]; value != "1" {
		p.unsafe("sync_binlog", value, "1")
	}
	if v["binlog_format"] == "STATEMENT" {
		p.found(driver.ClassConfig, "set binlog_format to ROW", "binlog_format is STATEMENT, which cannot log at READ COMMITTED")
	}
	return nil
}

const canaryRounds = 20

// canary writes the id of the server that writes, and compares it with the one
// that reads: a proxy that sends reads elsewhere would show rows as they were.
// The row is this call's own, so that others' checks do not disturb it.
func (p *probe) canary() (err error) {
	id := driver.NewToken()
	if _, err := p.s.exec(p.timeout, p.tables.canaryInsert(), id[:]); err != nil {
		return err
	}
	defer func() {
		if !p.s.bad {
			_, gone := p.s.exec(p.timeout, p.tables.canaryDelete(), id[:])
			err = errors.Join(err, gone)
		}
	}()
	for beat := 1; beat <= canaryRounds; beat++ {
		if _, err := p.s.exec(p.timeout, p.tables.canaryUpdate(), beat, id[:]); err != nil {
			return err
		}
		seen := false
		err := p.s.query(p.timeout, func(rows *sql.Rows) error {
			var wrote, reads uint64
			var last int
			err := rows.Scan(&wrote, &reads, &last)
			seen = wrote == reads && last == beat
			return err
		}, p.tables.canaryRead(), id[:])
		if err != nil {
			return err
		}
		if !seen {
			p.found(driver.ClassConfig, "connect to the primary itself, or switch off read/write splitting for this user",
				"what one server wrote another read: there is a proxy that splits reads from writes")
			return nil
		}
	}
	return nil
}

// roundTrip takes a lease on a key of the driver's own through its life.
func (a *Authority) roundTrip(ctx context.Context) error {
	token := driver.NewToken()
	c := driver.Claim{Key: reserved + "check", TTL: 2 * time.Second, Holder: "check " + token.String(), Block: 1}
	grant, err := a.claim(ctx, c)
	if _, held := errors.AsType[*driver.Refusal](err); held {
		return nil // by another process's check: the round trip works
	}
	if err != nil {
		return err
	}
	answer, err := await(ctx, a, "check", a.giveBack(driver.Release{Key: c.Key, Token: grant.Token, Until: grant.Until}).answer)
	if err != nil {
		return err
	}
	return answer
}
