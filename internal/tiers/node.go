// SPDX-License-Identifier: Apache-2.0

package tiers

import (
	"hash/fnv"
	"strings"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
)

// Node is what one process has of the tiers: drivers of its own, each behind a
// proxy of its own.
type Node struct {
	Filter           *redisfast.Filter
	Authority        *mysqlauth.Authority
	ToRedis, ToMySQL *stack.Proxy
}

// Node opens the drivers of another process. Whoever gets them closes them.
// Nodes of a test differ in what their DSN says of time zones, isolation and
// the like, which must mean nothing.
func (s *Tiers) Node(tb stack.TB) Node {
	tb.Helper()
	h := fnv.New32a()
	_, _ = h.Write([]byte(tb.Name())) // never fails
	dialects := Dialects(s.Database.Server().Engine())
	dialect := dialects[(int(h.Sum32()>>1)+s.nodes)%len(dialects)]
	s.nodes++
	return s.NodeWith(tb, dialect)
}

// NodeWith opens the drivers of another process, whose DSN has these
// parameters.
func (s *Tiers) NodeWith(tb stack.TB, dialect string) Node {
	tb.Helper()
	n := Node{ToRedis: stack.StartProxy(tb, s.Redis), ToMySQL: stack.StartProxy(tb, s.Database.Server())}
	var err error
	if n.Filter, err = redisfast.Open(n.ToRedis.URL(), redisfast.WithPrefix(s.Prefix)); err != nil {
		tb.Fatalf("%v", err)
	}
	dsn := WithParameters(s.Database.DSNAt(n.ToMySQL.Addr()), dialect)
	if n.Authority, err = mysqlauth.Open(dsn, mysqlauth.WithSweepInterval(0)); err != nil {
		tb.Fatalf("%v", err)
	}
	return n
}

// Dialects are DSN parameters that change what SQL means on a connection.
func Dialects(e stack.Engine) []string {
	isolation := "transaction_isolation"
	if e == stack.MariaDB {
		isolation = "tx_isolation"
	}
	return []string{
		"",
		"clientFoundRows=true",
		"parseTime=true&loc=Local&time_zone=%27%2B08%3A00%27",
		"parseTime=true&loc=America%2FNew_York&time_zone=%27-05%3A00%27&clientFoundRows=true",
		isolation + "=%27SERIALIZABLE%27",
		isolation + "=%27READ-UNCOMMITTED%27&autocommit=0",
		"autocommit=0&clientFoundRows=true&sql_mode=%27ANSI%2CNO_BACKSLASH_ESCAPES%27",
		"sql_safe_updates=1&completion_type=1",
	}
}

// WithParameters adds parameters to a DSN.
func WithParameters(dsn, parameters string) string {
	switch {
	case parameters == "":
		return dsn
	case strings.Contains(dsn, "?"):
		return dsn + "&" + parameters
	}
	return dsn + "?" + parameters
}
