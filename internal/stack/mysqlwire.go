// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// MySQL command bytes that matter here.
const (
	comQuit         = 0x01
	comInitDB       = 0x02
	comQuery        = 0x03
	comPing         = 0x0e
	comChangeUser   = 0x11
	comStmtPrepare  = 0x16
	comStmtExecute  = 0x17
	comStmtLongData = 0x18
	comStmtClose    = 0x19
	comStmtReset    = 0x1a
	comStmtFetch    = 0x1c
	comResetConn    = 0x1f
)

var commandNames = map[byte]string{
	comQuit: "COM_QUIT", comInitDB: "COM_INIT_DB", comQuery: "COM_QUERY", comPing: "COM_PING",
	comStmtPrepare: "COM_STMT_PREPARE", comStmtExecute: "COM_STMT_EXECUTE", comStmtLongData: "COM_STMT_SEND_LONG_DATA",
	comStmtClose: "COM_STMT_CLOSE", comStmtReset: "COM_STMT_RESET", comResetConn: "COM_RESET_CONNECTION",
}

// Capabilities that change what replies look like, or make the rest unreadable.
const (
	capMySQL        = 1 << 0 // not set by MariaDB's extended protocol
	capCompress     = 1 << 5
	capTLS          = 1 << 11
	capDeprecateEOF = 1 << 24
	capZstd         = 1 << 26

	extCacheMetadata = 1 << 4 // MariaDB: column definitions may be left out
)

// mysqlWire reads the classic protocol: first the log-in, packet by packet, then commands and their answers.
type mysqlWire struct {
	mu       sync.Mutex
	greeted  bool // the client's first packet was seen
	loggedIn bool // the server accepted it
	caps     uint32
	extended uint32
	texts    map[uint32]string // prepared statements by number
}

// packet is a logical packet: payloads of 16 MB are continued in the next.
type packet struct{ raw, payload []byte }

const maxPayload = 1<<24 - 1

func readPacket(r *bufio.Reader) (packet, error) {
	var p packet
	for {
		var header [4]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return p, err
		}
		n := int(header[0]) | int(header[1])<<8 | int(header[2])<<16
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil {
			return p, err
		}
		p.raw = append(append(p.raw, header[:]...), body...)
		p.payload = append(p.payload, body...)
		if n < maxPayload {
			break
		}
	}
	if len(p.payload) == 0 {
		p.payload = []byte{0} // an empty password answer; nothing indexes past the first byte
	}
	return p, nil
}

func (w *mysqlWire) readRequest(r *bufio.Reader) (*message, error) {
	p, err := readPacket(r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &message{}
	m.Raw = p.raw
	if !w.loggedIn {
		m.handshake = true
		return m, w.greet(p.payload)
	}
	m.command = p.payload[0]
	m.Verb = commandNames[m.command]
	m.answered = true
	switch m.command {
	case comQuery, comStmtPrepare, comInitDB:
		m.Text = string(p.payload[1:])
	case comStmtExecute, comStmtReset:
		m.Text = w.texts[statementNumber(p.payload)]
	case comStmtLongData:
		m.Text, m.answered = w.texts[statementNumber(p.payload)], false
	case comStmtClose:
		m.Text, m.answered = w.texts[statementNumber(p.payload)], false
		delete(w.texts, statementNumber(p.payload))
	case comQuit:
		m.answered = false
	case comChangeUser, comStmtFetch:
		return nil, fmt.Errorf("%w: command 0x%02x", errWire, m.command)
	}
	if m.Verb == "" {
		m.Verb = fmt.Sprintf("COM_0x%02x", m.command)
	}
	return m, nil
}

// greet reads the capabilities out of the client's first packet.
func (w *mysqlWire) greet(payload []byte) error {
	if w.greeted {
		return nil // the dialogue about the password
	}
	if len(payload) < 32 {
		return fmt.Errorf("%w: a handshake of %d bytes", errWire, len(payload))
	}
	w.greeted = true
	w.caps = binary.LittleEndian.Uint32(payload)
	if w.caps&capMySQL == 0 {
		w.extended = binary.LittleEndian.Uint32(payload[28:])
	}
	if w.caps&(capTLS|capCompress|capZstd) != 0 {
		return fmt.Errorf("%w: TLS or compression", errWire)
	}
	return nil
}

func statementNumber(payload []byte) uint32 {
	if len(payload) < 5 {
		return 0
	}
	return binary.LittleEndian.Uint32(payload[1:])
}

// sqlStates are those a driver or a library looks at.
var sqlStates = map[uint16]string{
	1020: "HY000", 1045: "28000", 1062: "23000", 1142: "42000", 1146: "42S02", 1205: "HY000", 1213: "40001",
	1290: "HY000", 1317: "70100", 1792: "25006", 1836: "HY000", 3024: "HY000", 3572: "HY000",
}

// encodeError makes an error packet that answers a command, whose own number is 0.
func (*mysqlWire) encodeError(a Action) []byte {
	state := a.state
	if state == "" {
		state = sqlStates[a.number]
	}
	if state == "" {
		state = "HY000"
	}
	payload := binary.LittleEndian.AppendUint16([]byte{0xff}, a.number)
	payload = append(append(payload, "#"+state...), a.text...)
	n := len(payload)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), 1}, payload...)
}
