// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"crypto/tls"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/tier/driver"
)

// One row for each row of the tables, and for what must not be in them.
func TestClassify(t *testing.T) {
	const (
		contention = driver.ClassContention
		caller     = driver.ClassCaller
		transient  = driver.ClassTransient
		down       = driver.ClassDown
		config     = driver.ClassConfig
		unknown    = driver.ClassUnknown
	)
	server := func(number uint16) error { return &mysql.MySQLError{Number: number, Message: "x"} }
	tests := []struct {
		err   error
		class driver.Class
		proof bool
	}{
		{server(1213), contention, true},
		{server(1205), contention, true},
		{server(3572), contention, true},
		{server(1020), contention, true},
		{server(3101), contention, true},
		{server(1062), contention, true},
		{&mysql.MySQLError{Number: 9999, SQLState: rollbackState}, contention, true},
		{server(1040), down, true},
		{server(1203), down, true},
		{server(1226), down, true},
		{server(1290), down, true},
		{server(1792), down, true},
		{server(1836), down, true},
		{server(1223), down, true},
		{server(1047), down, true},
		{server(3032), down, true},
		{server(1053), down, false},
		{server(1927), down, false},
		{server(1317), down, false},
		{server(1077), down, false},
		{server(1079), down, false},
		{server(1021), down, false},
		{server(1114), down, false},
		{server(1037), down, false},
		{server(1041), down, false},
		{server(1180), down, false},
		{server(1206), down, false},
		{server(3100), down, false},
		{server(4031), down, false},
		{server(1969), down, false},
		{server(1045), config, true},
		{server(1698), config, true},
		{server(1130), config, true},
		{server(1129), config, true},
		{server(1862), config, true},
		{server(1820), config, true},
		{server(3159), config, true},
		{server(1049), config, true},
		{server(1046), config, true},
		{server(1044), config, true},
		{server(1142), config, true},
		{server(1143), config, true},
		{server(1227), config, true},
		{server(1146), config, true},
		{server(1054), config, true},
		{server(1136), config, true},
		{server(1364), config, true},
		{server(1665), config, true},
		{server(1193), config, true},
		{server(1064), config, true},
		{server(1105), unknown, false}, // "unknown error"
		{server(1644), unknown, false},

		{sqldriver.ErrBadConn, transient, true},
		{sql.ErrConnDone, transient, true},
		{ErrClosed, transient, true},
		{errLate, transient, true},
		{errNoFloor, config, true},
		{errFenceMax, config, true},
		{fmt.Errorf("%w: empty", ErrKey), config, true},
		{fmt.Errorf("%w: TTL", ErrValue), config, true},
		{mysql.ErrPktTooLarge, config, true},
		{mysql.ErrNoTLS, config, true},
		{mysql.ErrCleartextPassword, config, true},
		{mysql.ErrNativePassword, config, true},
		{mysql.ErrOldPassword, config, true},
		{mysql.ErrUnknownPlugin, config, true},
		{mysql.ErrOldProtocol, config, true},
		{context.Canceled, caller, false},
		{context.DeadlineExceeded, caller, false},

		{&net.OpError{Op: "dial", Err: errors.New("refused")}, down, true},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, unknown, false},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, unknown, false},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, config, true},
		{mysql.ErrInvalidConn, unknown, false},
		{mysql.ErrMalformPkt, unknown, false},
		{io.EOF, unknown, false},
		{io.ErrUnexpectedEOF, unknown, false},
		{errNoAnswer, unknown, false},
		{errCut, unknown, false},
	}
	tested := make(map[uint16]bool)
	for _, test := range tests {
		err := classify("claim", fmt.Errorf("wrapped: %w", test.err))
		if got := driver.ClassOf(err); got != test.class {
			t.Errorf("%v: %v, want %v", test.err, got, test.class)
		}
		if got := proves(test.err); got != test.proof {
			t.Errorf("%v: proves %v, want %v", test.err, got, test.proof)
		}
		if !errors.Is(err, test.err) {
			t.Errorf("%v is not in %v", test.err, err)
		}
		if _, held := errors.AsType[*driver.Refusal](err); held {
			t.Errorf("%v became a refusal", test.err)
		}
		if answer, ok := errors.AsType[*mysql.MySQLError](test.err); ok {
			tested[answer.Number] = true
		}
		var classified *driver.Error
		if errors.As(err, &classified); classified.Class == config && classified.Advice == "" &&
			!errors.Is(err, ErrKey) && !errors.Is(err, ErrValue) {
			t.Errorf("%v: no advice", test.err)
		}
	}
	for number := range meanings {
		if !tested[number] {
			t.Errorf("error %d has no row in this test", number)
		}
	}
	if classify("claim", nil) != nil {
		t.Error("nil became an error")
	}
}

// No error quotes a key, though the server's own text does.
func TestSession_errorsQuoteNoKey(t *testing.T) {
	bothEngines(t, func(t *testing.T, d *stack.Database) {
		a := open(t, d.DSN(), WithTimeout(busyLimit))
		s, err := a.sessions.borrow(t.Context(), "test", busyLimit)
		if err != nil {
			t.Fatal(err)
		}
		defer a.sessions.giveBackBorrowed(s)
		key := []byte("ns/secret")
		mustExec(t, s.conn, "INSERT INTO lease VALUES (?, NULL, 1, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", key)
		for number, statement := range map[uint16]string{
			1064: "SELECT FROM WHERE ?",
			1062: "INSERT INTO lease VALUES (?, NULL, 1, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
			1292: "UPDATE lease SET expires_at = ?",
			1366: "UPDATE lease SET fence = ?",
		} {
			_, err := s.exec(busyLimit, statement, key)
			answer, ok := errors.AsType[*mysql.MySQLError](err)
			if !ok || answer.Number != number {
				t.Errorf("%s: %v, want error %d", statement, err, number)
				continue
			}
			if !strings.Contains(answer.Message, "secret") {
				t.Logf("%s: the server quotes nothing: %v", statement, answer)
			}
			if text := classify("test", err).Error(); strings.Contains(text, "secret") || !strings.Contains(text, strconv.Itoa(int(number))) {
				t.Errorf("the error of %s is %q", statement, text)
			}
		}
	})
}

// Nothing of ours was sent: what is not known means that the tier is down.
func TestUnreachable(t *testing.T) {
	for err, want := range map[error]driver.Class{
		io.EOF: driver.ClassDown, errNoAnswer: driver.ClassDown, sqldriver.ErrBadConn: driver.ClassTransient,
		error(&mysql.MySQLError{Number: 1045}): driver.ClassConfig,
	} {
		if got := driver.ClassOf(unreachable("connect", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
