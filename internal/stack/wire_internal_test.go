// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// frame puts payloads into packets, numbered from seq.
func frame(seq byte, payloads ...string) (out []byte) {
	for _, p := range payloads {
		out = append(out, byte(len(p)), byte(len(p)>>8), byte(len(p)>>16), seq)
		out = append(out, p...)
		seq++
	}
	return out
}

// wireOf is a connection that has logged in with these capabilities.
func wireOf(caps, extended uint32) *mysqlWire {
	return &mysqlWire{greeted: true, loggedIn: true, caps: caps, extended: extended, texts: map[uint32]string{}}
}

func TestMysqlWire_readReply(t *testing.T) {
	t.Parallel()
	const (
		ok        = "\x00\x01\x00\x02\x00\x00\x00"
		okMore    = "\x00\x01\x00\x0a\x00\x00\x00"
		eof       = "\xfe\x00\x00\x02\x00"
		eofMore   = "\xfe\x00\x00\x0a\x00"
		okAsEOF   = "\xfe\x00\x00\x02\x00\x00\x00"
		failure   = "\xff\xbd\x04#40001Deadlock"
		prepareOK = "\x00\x07\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00" // number 7, one column, two parameters
	)
	for name, c := range map[string]struct {
		command        byte
		caps, extended uint32
		packets        []string
		number         uint16
	}{
		"ok":                      {command: comQuery, packets: []string{ok}},
		"error":                   {command: comQuery, packets: []string{failure}, number: 1213},
		"ping":                    {command: comPing, packets: []string{ok}},
		"rows, EOF packets":       {command: comQuery, packets: []string{"\x01", "column", eof, "row", "row", eof}},
		"rows, no EOF packets":    {command: comQuery, caps: capDeprecateEOF, packets: []string{"\x01", "column", "row", okAsEOF}},
		"error after rows":        {command: comQuery, packets: []string{"\x01", "column", eof, "row", failure}, number: 1213},
		"two results":             {command: comQuery, packets: []string{"\x01", "column", eof, "row", eofMore, ok}},
		"ok, then an error":       {command: comQuery, packets: []string{okMore, failure}, number: 1213},
		"columns left out":        {command: comStmtExecute, caps: capDeprecateEOF, extended: extCacheMetadata, packets: []string{"\x02\x00", "\x00row", okAsEOF}},
		"columns sent":            {command: comStmtExecute, caps: capDeprecateEOF, extended: extCacheMetadata, packets: []string{"\x01\x01", "column", "\x00row", okAsEOF}},
		"prepared, EOF packets":   {command: comStmtPrepare, packets: []string{prepareOK, "p", "p", eof, "c", eof}},
		"prepared, no EOF packet": {command: comStmtPrepare, caps: capDeprecateEOF, packets: []string{prepareOK, "p", "p", "c"}},
		"prepare refused":         {command: comStmtPrepare, packets: []string{failure}, number: 1213},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := wireOf(c.caps, c.extended)
			reply := frame(1, c.packets...)
			next := frame(1, ok)
			in := bufio.NewReader(bytes.NewReader(append(bytes.Clone(reply), next...)))
			m := &message{command: c.command}
			m.Text = "the text"
			a, err := w.readReply(in, func() *message { return m })
			require.NoError(t, err)
			assert.Equal(t, reply, a.Raw, "exactly the reply, and not the next one")
			assert.Equal(t, c.number, a.Number)
			assert.Equal(t, c.number != 0, a.Failed())
			assert.False(t, a.unasked)
			if c.command == comStmtPrepare && c.number == 0 {
				assert.Equal(t, "the text", w.texts[7])
			}
			rest, err := w.readReply(in, func() *message { return &message{command: comPing} })
			require.NoError(t, err)
			assert.Equal(t, next, rest.Raw)
		})
	}
}

func TestMysqlWire_refusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for name, caps := range map[string]uint32{"TLS": capTLS, "compression": capCompress, "zstd": capZstd} {
		hello := make([]byte, 32)
		binary.LittleEndian.PutUint32(hello, capMySQL|caps)
		_, err := (&mysqlWire{}).readRequest(bufio.NewReader(bytes.NewReader(frame(1, string(hello)))))
		require.ErrorIs(t, err, errWire, name)
	}
}

func TestRespWire_readsWhole(t *testing.T) {
	t.Parallel()
	for _, v := range []string{
		"+OK\r\n", ":1\r\n", "$-1\r\n", "$4\r\na\r\nb\r\n", "*-1\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n",
		"%1\r\n$1\r\nk\r\n$1\r\nv\r\n", "~1\r\n+a\r\n", "!3\r\nERR\r\n", "=5\r\ntxt:a\r\n", "|1\r\n+k\r\n+v\r\n:3\r\n",
	} {
		in := bufio.NewReader(bytes.NewReader([]byte(v + "+next\r\n")))
		got, err := readValue(in)
		require.NoError(t, err, "%q", v)
		assert.Equal(t, v, string(got.raw))
	}
}

func FuzzRespWire(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"))
	f.Add([]byte("*1000000000\r\n$1000000000\r\n"))
	f.Add([]byte(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := &respWire{}
		in := bufio.NewReader(bytes.NewReader(data))
		var read []byte
		for {
			m, err := w.readRequest(in)
			if err != nil {
				break
			}
			read = append(read, m.Raw...)
		}
		require.True(t, bytes.HasPrefix(data, read), "what is forwarded is what came")
	})
}

func FuzzMysqlWire(f *testing.F) {
	f.Add(byte(comQuery), uint32(0), frame(1, "\x01", "column", "\xfe\x00\x00\x02\x00", "row", "\xfe\x00\x00\x02\x00"))
	f.Add(byte(comStmtPrepare), uint32(capDeprecateEOF), frame(1, "\x00\x07\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00", "p", "p", "c"))
	f.Add(byte(comQuery), uint32(0), frame(1, "\xff", "\xfe", "\xfc"))
	f.Fuzz(func(t *testing.T, command byte, caps uint32, data []byte) {
		w := wireOf(caps, caps)
		in := bufio.NewReader(bytes.NewReader(data))
		var read []byte
		for {
			a, err := w.readReply(in, func() *message { return &message{command: command} })
			if err != nil {
				break
			}
			read = append(read, a.Raw...)
		}
		require.True(t, bytes.HasPrefix(data, read), "what is forwarded is what came")
	})
}

func TestRespWire_subscriptionIsAnsweredByItsLastConfirmation(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"*", ">"} { // RESP2, RESP3
		w := &respWire{}
		m, err := w.readRequest(bufio.NewReader(bytes.NewReader([]byte("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n$1\r\nb\r\n"))))
		require.NoError(t, err)
		confirm := kind + "3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
		push := kind + "3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n"
		in := bufio.NewReader(bytes.NewReader([]byte(confirm + push + confirm)))
		var unasked []bool
		for range 3 {
			a, err := w.readReply(in, func() *message { return m })
			require.NoError(t, err)
			unasked = append(unasked, a.unasked)
		}
		assert.Equal(t, []bool{true, true, false}, unasked)
	}
}
