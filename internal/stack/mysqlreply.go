// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"strings"
)

// First bytes of a server's packet.
const (
	okPacket    = 0x00
	infilePack  = 0xfb
	eofPacket   = 0xfe
	errorPacket = 0xff
)

// moreResults is the status flag that says another result follows.
const moreResults = 0x0008

// replyReader gathers the packets of one answer.
type replyReader struct {
	in    *bufio.Reader
	raw   []byte
	noEOF bool // column definitions and rows are not ended by EOF packets but, rows only, by an OK packet
	cache bool // MariaDB says whether column definitions follow
}

func (w *mysqlWire) readReply(in *bufio.Reader, head func() *message) (answer, error) {
	rr := &replyReader{in: in}
	first, err := rr.next()
	if err != nil {
		return answer{}, err
	}
	w.mu.Lock()
	wasIn := w.loggedIn
	w.loggedIn = wasIn || (w.greeted && first[0] == okPacket)
	rr.noEOF = w.caps&capDeprecateEOF != 0
	rr.cache = w.extended&extCacheMetadata != 0
	w.mu.Unlock()

	m := head()
	if !wasIn || m == nil { // the log-in, or a farewell such as 1053
		return answer{Reply: rr.reply(first), unasked: true}, nil
	}
	last := first
	switch m.command {
	case comQuery, comStmtExecute:
		last, err = rr.results(first)
	case comStmtPrepare:
		if first[0] == okPacket {
			err = w.prepared(rr, first, m.Text)
		}
	}
	if err != nil {
		return answer{}, err
	}
	return answer{Reply: rr.reply(last)}, nil
}

// reply is what was gathered; last is where an error stands.
func (rr *replyReader) reply(last []byte) Reply {
	r := Reply{Raw: rr.raw}
	if last[0] == errorPacket && len(last) >= 3 {
		r.Number = binary.LittleEndian.Uint16(last[1:])
		r.Error = string(last[3:])
		if strings.HasPrefix(r.Error, "#") && len(r.Error) >= 6 {
			r.Error = r.Error[6:] // behind the SQL state
		}
	}
	return r
}

func (rr *replyReader) next() ([]byte, error) {
	p, err := readPacket(rr.in)
	rr.raw = append(rr.raw, p.raw...)
	return p.payload, err
}

func (rr *replyReader) skip(n int) error {
	for range n {
		if _, err := rr.next(); err != nil {
			return err
		}
	}
	return nil
}

// skipColumns reads n column definitions and what ends them.
func (rr *replyReader) skipColumns(n int) error {
	if n > 0 && !rr.noEOF {
		n++
	}
	return rr.skip(n)
}

// results reads all results of a statement and returns the packet that ends them.
func (rr *replyReader) results(p []byte) ([]byte, error) {
	for {
		var status uint16
		switch p[0] {
		case errorPacket:
			return p, nil
		case infilePack:
			return p, fmt.Errorf("%w: LOAD DATA LOCAL", errWire)
		case okPacket:
			status = okStatus(p)
		default:
			var err error
			if p, err = rr.rows(p); err != nil || p[0] == errorPacket {
				return p, err
			}
			if rr.noEOF {
				status = okStatus(p)
			} else if len(p) >= 5 {
				status = binary.LittleEndian.Uint16(p[3:])
			}
		}
		if status&moreResults == 0 {
			return p, nil
		}
		var err error
		if p, err = rr.next(); err != nil {
			return p, err
		}
	}
}

// rows reads a result set from its column count on and returns the packet that ends it.
func (rr *replyReader) rows(p []byte) ([]byte, error) {
	n, rest := lengthEncoded(p)
	follow := !rr.cache || len(rest) == 0 || rest[0] == 1
	if follow {
		if err := rr.skip(int(n)); err != nil {
			return p, err
		}
	}
	if !rr.noEOF {
		if err := rr.skip(1); err != nil {
			return p, err
		}
	}
	for {
		p, err := rr.next()
		if err != nil {
			return p, err
		}
		// A row may start with 0xfe only as the length of a value over 16 MB.
		ends := p[0] == eofPacket && (len(p) < 9 || (rr.noEOF && len(p) < maxPayload))
		if ends || p[0] == errorPacket {
			return p, nil
		}
	}
}

// prepared reads the rest of a COM_STMT_PREPARE answer and remembers the statement.
func (w *mysqlWire) prepared(rr *replyReader, ok []byte, text string) error {
	if len(ok) < 9 {
		return fmt.Errorf("%w: a prepare answer of %d bytes", errWire, len(ok))
	}
	w.mu.Lock()
	w.texts[binary.LittleEndian.Uint32(ok[1:])] = text
	w.mu.Unlock()
	columns, params := binary.LittleEndian.Uint16(ok[5:]), binary.LittleEndian.Uint16(ok[7:])
	if err := rr.skipColumns(int(params)); err != nil {
		return err
	}
	return rr.skipColumns(int(columns))
}

// okStatus reads the status flags of an OK packet: header, affected rows, insert id, status.
func okStatus(p []byte) uint16 {
	_, rest := lengthEncoded(p[1:])
	_, rest = lengthEncoded(rest)
	if len(rest) < 2 {
		return 0
	}
	return binary.LittleEndian.Uint16(rest)
}

// lengthEncoded reads MySQL's variable-length integer; one that is cut short reads as 0 with nothing left.
func lengthEncoded(p []byte) (n uint64, rest []byte) {
	if len(p) == 0 {
		return 0, nil
	}
	size := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[p[0]]
	if size == 0 {
		return uint64(p[0]), p[1:]
	}
	if len(p) < 1+size {
		return 0, nil
	}
	for i := size; i > 0; i-- {
		n = n<<8 | uint64(p[i])
	}
	return n, p[1+size:]
}
