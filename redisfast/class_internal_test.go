// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/tier/driver"
)

// reply is an error as a server's answer; go-redis has types of its own for
// some, which tests over the wire get.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestClassify(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	read := func(err error) error { return &net.OpError{Op: "read", Net: "tcp", Err: err} }
	for _, row := range []struct {
		err    error
		class  driver.Class
		advice bool
	}{
		{reply("LOADING Redis is loading the dataset in memory"), driver.ClassDown, true},
		{reply("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), driver.ClassDown, true},
		{reply("READONLY You can't write against a read only replica."), driver.ClassDown, true},
		{reply("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), driver.ClassDown, true},
		{reply("NOREPLICAS Not enough good replicas to write."), driver.ClassDown, true},
		{reply("CLUSTERDOWN Hash slot not served"), driver.ClassDown, true},
		{reply("MOVED 3999 127.0.0.1:6381"), driver.ClassDown, true},
		{reply("ASK 3999 127.0.0.1:6381"), driver.ClassTransient, true},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), driver.ClassTransient, true},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), driver.ClassDown, true},
		{reply("MISCONF Redis is configured to save RDB snapshots"), driver.ClassDown, true},
		{reply("NOSCRIPT No matching script. Please use EVAL."), driver.ClassTransient, true},
		{reply("EXECABORT Transaction discarded because of previous errors."), driver.ClassTransient, true},
		{reply("NOAUTH Authentication required."), driver.ClassConfig, true},
		{reply("WRONGPASS invalid username-password pair or user is disabled."), driver.ClassConfig, true},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), driver.ClassConfig, true},
		{reply("NOPROTO unsupported protocol version"), driver.ClassConfig, true},
		{reply("DENIED Redis is running in protected mode"), driver.ClassConfig, true},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), driver.ClassConfig, true},
		{reply("CROSSSLOT Keys in request don't hash to the same slot"), driver.ClassConfig, true},

		{reply("ERR max number of clients reached"), driver.ClassDown, true},
		{reply("ERR unknown command 'EVALSHA', with args beginning with: "), driver.ClassConfig, true},
		{reply("ERR The user executing the script can't run this command or subcommand script: 7842d4, on @user_script:18."), driver.ClassConfig, true},
		{reply("ERR ACL failure in script: User has no permissions to run the 'publish' command"), driver.ClassConfig, true},
		{reply("ERR This instance has cluster support disabled"), driver.ClassConfig, true},
		{reply("ERR DB index is out of range"), driver.ClassConfig, true},
		{reply("ERR AUTH <password> called without any password configured for the default user."), driver.ClassConfig, true},
		{reply("ERR Client sent AUTH, but no password is set"), driver.ClassConfig, true},
		{reply("ERR invalid password"), driver.ClassConfig, true},
		{reply("ERR something nobody has heard of"), driver.ClassUnknown, false},

		// As Redis before 7 reports what a script met, and as some proxies do.
		{reply("ERR Error running script (call to f_e1a): @user_script:3: -OOM command not allowed"), driver.ClassDown, true},
		{reply("ERR Error running script (call to f_e1a): @user_script:16: @user_script: 16: -READONLY You can't write against a read only replica."), driver.ClassDown, true},
		{reply("ERR Error running script (call to f_e1a): @user_script:16: WRONGTYPE Operation against a key"), driver.ClassConfig, true},
		{reply("ERR LOADING server is starting"), driver.ClassDown, true},
		{reply("ERR the word OOM inside a text proves nothing"), driver.ClassUnknown, false},

		{dial(syscall.ECONNREFUSED), driver.ClassDown, true},
		{dial(os.ErrDeadlineExceeded), driver.ClassDown, true},
		{dial(context.DeadlineExceeded), driver.ClassDown, true},
		{&net.DNSError{Err: "no such host", Name: "redis"}, driver.ClassDown, true},
		{errors.New("redis: all sentinels specified in configuration are unreachable: x"), driver.ClassDown, true},
		{&tls.CertificateVerificationError{Err: errors.New("x509: unknown authority")}, driver.ClassConfig, true},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, driver.ClassConfig, true},
		{redis.ErrPoolTimeout, driver.ClassTransient, true},
		{redis.ErrPoolExhausted, driver.ClassTransient, true},
		{redis.ErrClosed, driver.ClassConfig, true},
		{read(os.ErrDeadlineExceeded), driver.ClassUnknown, true},
		{read(syscall.ECONNRESET), driver.ClassUnknown, false},
		{io.EOF, driver.ClassUnknown, false},
		{io.ErrUnexpectedEOF, driver.ClassUnknown, false},
		{context.DeadlineExceeded, driver.ClassUnknown, true}, // the filter's own
		{ErrTimeout, driver.ClassUnknown, true},
		{ErrClosed, driver.ClassCaller, false},
		{ErrOption, driver.ClassConfig, false},
	} {
		errs := []error{row.err}
		if !strings.HasPrefix(row.err.Error(), "redis: all sentinels") { // a text is all it has
			errs = append(errs, fmt.Errorf("wrapped: %w", row.err))
		}
		for _, err := range errs {
			e := fault("mark", err)
			if e.Class != row.class || (e.Advice != "") != row.advice {
				t.Errorf("%v: %v, advice %q", err, e.Class, e.Advice)
			}
			if !errors.Is(e, row.err) {
				t.Errorf("%v is not in the chain", row.err)
			}
		}
	}
	for code, v := range byCode {
		if v.class == driver.ClassContention || v.class == driver.ClassCaller || v.advice == "" {
			t.Errorf("%s: class %v, advice %q", code, v.class, v.advice)
		}
	}
}
