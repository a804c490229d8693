// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tierlock/tierlock/tier/driver"
)

// Shard is one of several databases that share the keys.
type Shard struct {
	// Name is what the keys are dealt out by, and never changes: 1 to 64 of a-z,
	// 0-9, "_" and "-".
	Name      string
	Authority *Authority
}

// Sharded is a [driver.Authority] over several databases. Each key belongs to one of
// them, by rendezvous hashing of the shards' names: the order of the list means
// nothing, and a shard that is added takes over its own share of the keys and no
// others. Adding one is for a service that is stopped, all the same: a key that
// changes its database is free there, whoever holds it here.
//
// So every database records which shard it is and which others there are, and
// [Sharded.Check] refuses a list that differs. A guarded write has to be on the
// server of its key's shard, or needs a guard of the high-water kind.
type Sharded struct {
	shards []*shard // by name
	list   string

	mu sync.Mutex // guards what is down
}

var _ driver.Authority = (*Sharded)(nil)

type shard struct {
	Shard
	down bool // its last exchange failed
}

var shardName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// maxShards keeps the list within its column.
const maxShards = 100

// NewSharded composes authorities, which it owns from then on: Close closes them.
// It sends nothing.
func NewSharded(shards ...Shard) (*Sharded, error) {
	if len(shards) == 0 || len(shards) > maxShards {
		return nil, fmt.Errorf("%w: %d shards, from 1 to %d are possible", ErrOption, len(shards), maxShards)
	}
	s := &Sharded{}
	var names []string
	for _, one := range shards {
		switch {
		case one.Authority == nil:
			return nil, fmt.Errorf("%w: shard %q has no authority", ErrOption, one.Name)
		case !shardName.MatchString(one.Name):
			return nil, fmt.Errorf("%w: shard %q must match %v", ErrOption, one.Name, shardName)
		case slices.Contains(names, one.Name):
			return nil, fmt.Errorf("%w: two shards are called %q", ErrOption, one.Name)
		}
		names = append(names, one.Name)
		s.shards = append(s.shards, &shard{Shard: one})
	}
	slices.Sort(names)
	slices.SortFunc(s.shards, func(a, b *shard) int { return cmp.Compare(a.Name, b.Name) })
	s.list = strings.Join(names, ",")
	return s, nil
}

// Of returns the authority of a key, which carries its namespace: to list, show or
// free keys as an operator does.
func (s *Sharded) Of(key string) *Authority { return s.of(key).Authority }

func (s *Sharded) of(key string) *shard {
	best, highest := s.shards[0], uint64(0)
	for _, one := range s.shards {
		if weight := weigh(one.Name, key); weight > highest {
			best, highest = one, weight
		}
	}
	return best
}

// weigh is how much a shard wants a key. It must be the same in every process and
// release for ever, and independent from shard to shard.
func weigh(name, key string) uint64 {
	sum := sha256.Sum256(append(append([]byte(name), 0), key...))
	return binary.BigEndian.Uint64(sum[:])
}

// Claim implements [driver.Authority].
func (s *Sharded) Claim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return s.of(c.Key).Authority.Claim(ctx, c)
}

// Look implements [driver.Authority].
func (s *Sharded) Look(ctx context.Context, key string) (driver.Row, error) {
	return s.of(key).Authority.Look(ctx, key)
}

// Release implements [driver.Authority].
func (s *Sharded) Release(ctx context.Context, r driver.Release) error {
	return s.of(r.Key).Authority.Release(ctx, r)
}

// Renew implements [driver.Authority]: each shard is asked for its own, at once.
func (s *Sharded) Renew(ctx context.Context, rs []driver.Renewal) []driver.Renewed {
	places := make(map[*shard][]int)
	for i, r := range rs {
		of := s.of(r.Key)
		places[of] = append(places[of], i)
	}
	answers := make([]driver.Renewed, len(rs))
	var all sync.WaitGroup
	for of, at := range places {
		all.Go(func() {
			mine := make([]driver.Renewal, len(at))
			for i, place := range at {
				mine[i] = rs[place]
			}
			for i, answer := range of.Authority.Renew(ctx, mine) {
				answers[at[i]] = answer
			}
		})
	}
	all.Wait()
	return answers
}

// Timeout implements [driver.Authority].
func (s *Sharded) Timeout() time.Duration {
	var longest time.Duration
	for _, one := range s.shards {
		longest = max(longest, one.Authority.Timeout())
	}
	return longest
}

// Observe implements [driver.Authority]. The tier is one, and its health decides
// about the keys of all shards: so a failure counts only while no shard answers. The
// keys of a shard that is down meet its errors, and the others go on.
func (s *Sharded) Observe(o driver.Observer) {
	for _, one := range s.shards {
		one.Authority.Observe(func(c driver.Call) {
			class := driver.ClassOf(c.Err)
			failed := c.Err != nil && class != driver.ClassContention && class != driver.ClassCaller
			s.mu.Lock()
			if c.Err == nil || failed {
				one.down = failed
			}
			others := slices.ContainsFunc(s.shards, func(other *shard) bool { return !other.down })
			s.mu.Unlock()
			if !failed || !others {
				o(c)
			}
		})
	}
}

// Ping implements [driver.Authority]: it is well when one shard is.
func (s *Sharded) Ping(ctx context.Context) error {
	errs := s.each(func(one *shard) error { return one.Authority.Ping(ctx) })
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// each does something with all shards at once, and says in an error whose it is.
func (s *Sharded) each(do func(*shard) error) []error {
	errs := make([]error, len(s.shards))
	var all sync.WaitGroup
	for i, one := range s.shards {
		all.Go(func() { errs[i] = one.named(do(one)) })
	}
	all.Wait()
	return errs
}

func (one *shard) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("shard %q: %w", one.Name, err)
}

// Check implements [driver.Authority]: every shard must do, and know the same list.
// The first start records it.
func (s *Sharded) Check(ctx context.Context) error {
	// A list that differs is refused before it is written anywhere: it would stay
	// in the databases that it has and the others do not.
	for _, ask := range []func(*shard) error{
		func(one *shard) error { return one.Authority.checkAs(ctx, true) },
		func(one *shard) error { return s.agree(ctx, one, false) },
	} {
		if err := errors.Join(s.each(ask)...); err != nil {
			return err
		}
	}
	// In the order of the names and one after another, so that of lists that are new
	// and have a shard in common one is refused and one is not.
	for _, one := range s.shards {
		if err := s.agree(ctx, one, true); err != nil {
			return one.named(err)
		}
	}
	return nil
}

// agree compares what a database says of itself, if it does, and with tell tells it
// before. The primary key lets one of many in.
func (s *Sharded) agree(ctx context.Context, one *shard, tell bool) error {
	a := one.Authority
	return a.detached(ctx, "check", func(ctx context.Context) error {
		session, err := a.sessions.borrow(ctx, "check", a.timeout)
		if err != nil {
			return err
		}
		defer a.sessions.giveBackBorrowed(session)
		if tell {
			_, err = session.exec(a.timeout, a.tables.tellShard(), []byte(one.Name), []byte(s.list))
			if err != nil {
				return classify("check", err)
			}
		}
		name, list, known, err := session.shard(a.timeout)
		switch {
		case err != nil:
			return classify("check", err)
		case name == one.Name && list == s.list, !known && !tell:
			return nil
		}
		return &driver.Error{
			Tier: "mysql", Op: "check", Class: driver.ClassConfig,
			Err: fmt.Errorf("the database says that it is shard %q of %q, and the configuration says %q of %q", name, list, one.Name, s.list),
			Advice: "start with the list that is recorded; to change it stop every process, wait for the longest TTL, and empty the table " +
				"shard in each database: while lists differ a key may be held in two databases",
		}
	})
}

// shard asks which shard the database says it is.
func (s *session) shard(limit time.Duration) (name, list string, known bool, err error) {
	err = s.query(limit, func(rows *sql.Rows) error {
		known = true
		return rows.Scan(&name, &list)
	}, s.from.tables.readShard())
	return name, list, known, err
}

// alone finds a database whose keys are shared out, for an authority that would
// grant them all.
func (p *probe) alone() error {
	name, list, known, err := p.s.shard(p.timeout)
	if known {
		p.found(driver.ClassConfig, "compose it with the other shards by NewSharded; to use it alone again stop every process, wait for "+
			"the longest TTL, and empty the table shard", "the database is shard %q of %q, and other keys belong to others", name, list)
	}
	if n := errorNumber(err); n == 1142 || n == 1146 {
		return nil // whoever shares out keys needs the table and the right
	}
	return err
}

// Args: name, list.
func (t tables) tellShard() string {
	return "INSERT INTO " + t.shard + " (id, name, list, recorded_at) VALUES (1, ?, ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE id = id"
}

func (t tables) readShard() string { return "SELECT name, list FROM " + t.shard + " WHERE id = 1" }

// Close implements [driver.Authority].
func (s *Sharded) Close(ctx context.Context) error {
	return errors.Join(s.each(func(one *shard) error { return one.Authority.Close(ctx) })...)
}
