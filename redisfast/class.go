// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/tier/driver"
)

// ErrTimeout is in the chain of the error of a call that the server did not
// answer within the filter's timeout. Its outcome is unknown.
var ErrTimeout = errors.New("redisfast: no answer in time")

// ErrClosed is in the chain of the error of a call after Close.
var ErrClosed = errors.New("redisfast: filter is closed")

// verdict is what an error means for the lock and what to do about it.
type verdict struct {
	class  driver.Class
	advice string
}

// byCode tells error replies apart by their first word. A reply proves that the
// server lives and refused; none of them says that a key is held.
var byCode = map[string]verdict{
	"LOADING":     {driver.ClassDown, "the server is reading its data set; it serves when that is done"},
	"BUSY":        {driver.ClassDown, "a script runs too long on the server; look at SLOWLOG, end it with SCRIPT KILL"},
	"READONLY":    {driver.ClassDown, "this is a replica; point the client at the primary, or at Sentinel"},
	"MASTERDOWN":  {driver.ClassDown, "this is a replica without its primary; point the client at the primary"},
	"NOREPLICAS":  {driver.ClassDown, "min-replicas-to-write is not met; bring replicas back or lower it, a filter needs none"},
	"CLUSTERDOWN": {driver.ClassDown, "the cluster does not cover all slots; see CLUSTER INFO"},
	"MOVED":       {driver.ClassDown, "the server belongs to a cluster; use redis.NewClusterClient"},
	"ASK":         {driver.ClassTransient, "a slot is moving; use redis.NewClusterClient if this lasts"},
	"TRYAGAIN":    {driver.ClassTransient, "a slot is moving; try again"},
	"OOM":         {driver.ClassDown, "the server is out of memory; raise maxmemory or give the marks a server of their own"},
	"MISCONF":     {driver.ClassDown, "the server cannot save and refuses writes; free its disk or see stop-writes-on-bgsave-error"},
	"NOSCRIPT":    {driver.ClassTransient, "the server forgot its scripts; try again"},
	"EXECABORT":   {driver.ClassTransient, "the server discarded a transaction; try again"},
	"NOAUTH":      {driver.ClassConfig, "the server wants a password; give the client one"},
	"WRONGPASS":   {driver.ClassConfig, "the server refused user name or password"},
	"NOPERM":      {driver.ClassConfig, "grant the user EVAL, EVALSHA, GET, SET, DEL, PTTL, PEXPIRE, PUBLISH, SUBSCRIBE on the prefix's keys and channels"},
	"NOPROTO":     {driver.ClassConfig, "the server does not speak this protocol; set the client's Protocol to 2"},
	"DENIED":      {driver.ClassConfig, "the server is in protected mode; set a password or bind address on it"},
	"WRONGTYPE":   {driver.ClassConfig, "something else keeps a value of another type under a mark's key; use a prefix of your own"},
	"CROSSSLOT":   {driver.ClassConfig, "a proxy or client splits keys by other rules than the cluster; each script has one key"},
}

// byText tells replies apart that begin with the generic ERR.
var byText = []struct {
	prefix string
	verdict
}{
	{"max number of clients reached", verdict{driver.ClassDown, "raise maxclients on the server or lower the clients' pools"}},
	{"unknown command", verdict{driver.ClassConfig, "the server does not offer this command; scripts (EVAL, EVALSHA) are needed"}},
	{"The user executing the script", byCode["NOPERM"]},
	{"ACL failure in script", byCode["NOPERM"]},
	{"This instance has cluster support disabled", verdict{driver.ClassConfig, "the server is no cluster; use redis.NewClient"}},
	{"DB index is out of range", verdict{driver.ClassConfig, "the server has fewer databases; correct the database number"}},
	{"AUTH", verdict{driver.ClassConfig, "the server has no password set; leave it out"}},
	{"Client sent AUTH", verdict{driver.ClassConfig, "the server has no password set; leave it out"}},
	{"invalid password", verdict{driver.ClassConfig, "the server refused user name or password"}},
}

// classify says what an error that go-redis returned means. It never sees the
// end of a caller's context: calls run under one of their own, so a deadline
// here is the filter's.
func classify(err error) verdict {
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return classifyReply(reply.Error())
	}
	// A dial comes before timeouts: what was never connected was never sent.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return verdict{driver.ClassDown, "nothing accepts connections at the server's address"}
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return verdict{driver.ClassDown, "the server's name does not resolve"}
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return verdict{driver.ClassConfig, "the server's certificate was refused; check the name and the root certificates"}
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return verdict{driver.ClassConfig, "the server does not speak TLS on this port"}
	}
	switch {
	case errors.Is(err, ErrOption):
		return verdict{driver.ClassConfig, ""}
	case errors.Is(err, ErrClosed):
		return verdict{driver.ClassCaller, ""}
	case errors.Is(err, redis.ErrClosed):
		return verdict{driver.ClassConfig, "the client was closed; close the filter first"}
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return verdict{driver.ClassTransient, "all connections are in use; raise the client's PoolSize"}
	case strings.HasPrefix(err.Error(), "redis: all sentinels specified in configuration are unreachable"):
		return verdict{driver.ClassDown, "no Sentinel answers"}
	case errors.Is(err, ErrTimeout), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return verdict{driver.ClassUnknown, "the server did not answer in time; see its SLOWLOG and the network"}
	}
	// What is left was cut while it was under way: EOF, reset.
	return verdict{driver.ClassUnknown, ""}
}

func classifyReply(text string) verdict {
	code, rest, _ := strings.Cut(text, " ")
	if v, ok := byCode[code]; ok {
		return v
	}
	// Some proxies put ERR before the code, and Redis before 7 wraps what a
	// command of a script met: "ERR Error running script (call to f_...):
	// @user_script:3: -OOM command not allowed ...".
	for word := range strings.FieldsSeq(rest) {
		if v, ok := byCode[strings.TrimPrefix(word, "-")]; ok {
			return v
		}
		if !strings.Contains(text, "@user_script") {
			break
		}
	}
	for _, row := range byText {
		if strings.HasPrefix(rest, row.prefix) {
			return row.verdict
		}
	}
	return verdict{driver.ClassUnknown, ""}
}

// fault wraps an error of one operation for the layers above.
func fault(op string, err error) *driver.Error {
	v := classify(err)
	return &driver.Error{Tier: "redis", Op: op, Class: v.class, Advice: v.advice, Err: err}
}

// callerFault is the error of a call whose own context ended.
func callerFault(op string, err error) *driver.Error {
	return &driver.Error{Tier: "redis", Op: op, Class: driver.ClassCaller, Err: err}
}
