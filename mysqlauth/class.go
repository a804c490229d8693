// SPDX-License-Identifier: Apache-2.0

package mysqlauth

import (
	"context"
	"crypto/tls"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/tier/driver"
)

// meaning is what an answer of the server means for the lock.
type meaning struct {
	class driver.Class
	// proof says that the statement did not and will not happen: it was
	// refused before it touched a row, or was rolled back. What is no proof is
	// settled, whatever its class.
	proof  bool
	advice string
}

// rollbackState is the SQLSTATE of every "transaction rolled back, try again".
var rollbackState = [5]byte{'4', '0', '0', '0', '1'}

const (
	adviceRights   = "grant the user SELECT, INSERT, UPDATE and DELETE on the lock tables"
	adviceSchema   = "create the tables with EnsureSchema or the schema file of this version, in the database of the DSN"
	adviceLogin    = "check user, password and host of the DSN"
	adviceReadOnly = "point the DSN at the primary, or make this server writable"
	adviceConns    = "raise max_connections, or lower the pools of the services"
	adviceTLS      = "check the tls parameter of the DSN against the server's certificate"
)

// meanings are the answers known. Every other is an unknown outcome.
var meanings = map[uint16]meaning{
	1213: {driver.ClassContention, true, ""}, // deadlock; also Galera's failed certification
	1205: {driver.ClassContention, true, ""}, // lock wait timeout
	3572: {driver.ClassContention, true, ""}, // NOWAIT on MySQL
	1020: {driver.ClassContention, true, ""}, // MariaDB's snapshot isolation
	3101: {driver.ClassContention, true, ""}, // rolled back by group replication's certification
	1062: {driver.ClassContention, true, ""}, // another process made the row first

	1040: {driver.ClassDown, true, adviceConns},
	1203: {driver.ClassDown, true, adviceConns},
	1226: {driver.ClassDown, true, adviceConns},
	1290: {driver.ClassDown, true, adviceReadOnly}, // --read-only, --super-read-only and other options
	1792: {driver.ClassDown, true, adviceReadOnly},
	1836: {driver.ClassDown, true, adviceReadOnly},
	1223: {driver.ClassDown, true, "release the global read lock (a backup?)"},
	1047: {driver.ClassDown, true, "the cluster node is not ready: wait, or use another"},
	3032: {driver.ClassDown, true, "the server is in offline mode"},
	1053: {driver.ClassDown, false, "the server is shutting down"},
	1927: {driver.ClassDown, false, "the connection was killed"},
	1317: {driver.ClassDown, false, "the statement was killed"},
	1077: {driver.ClassDown, false, "the server is shutting down"},
	1079: {driver.ClassDown, false, "the server is shutting down"},
	1021: {driver.ClassDown, false, "the server's disk is full"},
	1114: {driver.ClassDown, false, "the server's disk or tablespace is full"},
	1037: {driver.ClassDown, false, "the server is out of memory"},
	1041: {driver.ClassDown, false, "the server is out of memory"},
	1180: {driver.ClassDown, false, "the server could not commit"},
	1206: {driver.ClassDown, false, "the server has no room for more locks: raise innodb_buffer_pool_size"},
	3100: {driver.ClassDown, false, "group replication refused the commit: is this node in the group?"},
	4031: {driver.ClassDown, false, "the server closed an idle connection"},
	1969: {driver.ClassDown, false, "max_statement_time is too short for this server's load"},

	1045: {driver.ClassConfig, true, adviceLogin},
	1698: {driver.ClassConfig, true, adviceLogin},
	1130: {driver.ClassConfig, true, adviceLogin},
	1129: {driver.ClassConfig, true, "the server has blocked this host: FLUSH HOSTS"},
	1862: {driver.ClassConfig, true, "the user's password has expired"},
	1820: {driver.ClassConfig, true, "the user's password must be changed"},
	3159: {driver.ClassConfig, true, "the server wants TLS: set the tls parameter of the DSN"},
	1049: {driver.ClassConfig, true, "create the database, or correct its name in the DSN"},
	1046: {driver.ClassConfig, true, "name the database in the DSN"},
	1044: {driver.ClassConfig, true, adviceRights},
	1142: {driver.ClassConfig, true, adviceRights},
	1143: {driver.ClassConfig, true, adviceRights},
	1227: {driver.ClassConfig, true, adviceRights},
	1146: {driver.ClassConfig, true, adviceSchema},
	1054: {driver.ClassConfig, true, adviceSchema},
	1136: {driver.ClassConfig, true, adviceSchema},
	1364: {driver.ClassConfig, true, adviceSchema},
	1665: {driver.ClassConfig, true, "set binlog_format to ROW: the lock works at READ COMMITTED"},
	1193: {driver.ClassConfig, true, "the server does not know a variable of the DSN, or is older than MySQL 8.4 and MariaDB 10.11"},
	1064: {driver.ClassConfig, true, "the server is older than MySQL 8.4 and MariaDB 10.11"},
}

// classify gives an error of a statement, or of the way to one, its class. It
// is nil when err is.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var done *driver.Error
	if errors.As(err, &done) {
		return err
	}
	m := meaningOf(err)
	return &driver.Error{Tier: "mysql", Op: op, Class: m.class, Advice: m.advice, Err: err}
}

// unknown is classify for an error that leaves open what happened: a class
// that says more than "unknown" stays only where it helps an operator.
func unknown(op string, err error) error {
	err = classify(op, err)
	var e *driver.Error
	if errors.As(err, &e) && (e.Class == driver.ClassTransient || e.Class == driver.ClassContention) {
		e.Class = driver.ClassUnknown
	}
	return err
}

func meaningOf(err error) meaning {
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		if m, known := meanings[server.Number]; known {
			return m
		}
		if server.SQLState == rollbackState {
			return meaning{driver.ClassContention, true, ""}
		}
		return meaning{class: driver.ClassUnknown}
	}
	for _, m := range clientMeanings {
		if errors.Is(err, m.err) {
			return m.meaning
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return meaning{driver.ClassDown, true, "is the server running, and reachable from here?"}
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return meaning{driver.ClassConfig, true, adviceTLS}
	}
	return meaning{class: driver.ClassUnknown}
}

// clientMeanings are errors of the client side. What is not here (an ended
// statement limit, a broken connection) leaves open what happened.
var clientMeanings = []struct {
	err error
	meaning
}{
	// database/sql and the driver answer these before they have sent anything.
	{sqldriver.ErrBadConn, meaning{driver.ClassTransient, true, ""}},
	{sql.ErrConnDone, meaning{driver.ClassTransient, true, ""}},
	{ErrClosed, meaning{driver.ClassTransient, true, ""}},
	{errLate, meaning{driver.ClassTransient, true, ""}},
	{errNoFloor, meaning{driver.ClassConfig, true, adviceSchema}},
	{errFenceMax, meaning{driver.ClassConfig, true, "no fence is left for this key: use another key"}},
	{ErrKey, meaning{driver.ClassConfig, true, ""}},
	{ErrValue, meaning{driver.ClassConfig, true, ""}},
	{mysql.ErrPktTooLarge, meaning{driver.ClassConfig, true, "raise max_allowed_packet"}},
	{mysql.ErrNoTLS, meaning{driver.ClassConfig, true, adviceTLS}},
	{mysql.ErrCleartextPassword, meaning{driver.ClassConfig, true, adviceLogin}},
	{mysql.ErrNativePassword, meaning{driver.ClassConfig, true, adviceLogin}},
	{mysql.ErrOldPassword, meaning{driver.ClassConfig, true, adviceLogin}},
	{mysql.ErrUnknownPlugin, meaning{driver.ClassConfig, true, adviceLogin}},
	{mysql.ErrOldProtocol, meaning{driver.ClassConfig, true, "the server is older than MySQL 8.4 and MariaDB 10.11"}},
	// Only a caller's context gets here; limits of ours have errors of their own.
	{context.Canceled, meaning{driver.ClassCaller, false, ""}},
	{context.DeadlineExceeded, meaning{driver.ClassCaller, false, ""}},
}

// unreachable is classify for the way to a session: nothing of ours was sent,
// so what is not known better means that the tier does not serve.
func unreachable(op string, err error) error {
	err = classify(op, err)
	var e *driver.Error
	if errors.As(err, &e) && e.Class == driver.ClassUnknown {
		e.Class = driver.ClassDown
	}
	return err
}

// proves reports that the failed statement did not happen and never will.
func proves(err error) bool { return meaningOf(err).proof }

// rolledBack reports that the statement is worth repeating at once: other
// transactions were in its way, and it left nothing behind.
func rolledBack(err error) bool { return meaningOf(err).class == driver.ClassContention }

// duplicate reports that an INSERT met a row.
func duplicate(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 1062
}

// answered reports that the server, and not the network, failed the statement
// for a reason nobody listed: one bad row in a batch may be why.
func answered(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	_, known := meanings[server.Number]
	return !known && server.SQLState != rollbackState
}
