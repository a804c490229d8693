// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// document returns the mapping that is the one document of a file.
func document(name string, text []byte) (*yaml.Node, error) {
	wrong := func(line int, reason string) (*yaml.Node, error) {
		return nil, &Error{File: name, Line: line, Reason: reason}
	}
	if len(text) > maxSize {
		return wrong(0, "is over "+strconv.Itoa(maxSize)+" bytes: is it a config?")
	}
	for _, mark := range []string{"\ufeff", "\xfe\xff", "\xff\xfe"} {
		if bytes.HasPrefix(text, []byte(mark)) {
			return wrong(1, "begins with a byte order mark: save it as UTF-8 without one")
		}
	}
	if line, reason := illegible(text); reason != "" {
		return wrong(line, reason)
	}
	var first, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) || err == nil && first.Content[0].ShortTag() == "!!null" {
		return wrong(1, "holds nothing; a config of defaults alone is written as: policies: []")
	}
	if err == nil {
		if err = decoder.Decode(&second); err == nil {
			return wrong(second.Line, "a second document begins: want one a file")
		}
	}
	root := first.Content
	switch {
	case !errors.Is(err, io.EOF):
		return nil, syntax(name, text, err)
	case root[0].Kind != yaml.MappingNode || root[0].Style&yaml.TaggedStyle != 0:
		return wrong(root[0].Line, "want fields, one a line, as in namespace: shop")
	}
	return root[0], nil
}

// illegible finds the first character that no text has, on its line.
func illegible(text []byte) (line int, reason string) {
	line = 1
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, "is not UTF-8"
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return line, "has the control character " + strconv.QuoteRuneToASCII(r)
		}
		i += size
	}
	return line, ""
}

var (
	syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	noAnchor    = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
	tabbed      = regexp.MustCompile(`(?m)^ *\t[ \t]*[^ \t\r\n#]`)
)

// syntax makes the parser's error one of ours. The parser counts some lines from
// 0 and leaves others out.
func syntax(name string, text []byte, err error) error {
	line, reason := 1, err.Error()
	if m := syntaxError.FindStringSubmatch(reason); m != nil {
		counted, err := strconv.Atoi(m[1])
		reason = m[2]
		switch {
		case err == nil && strings.HasPrefix(reason, "did not find expected "):
			line = counted + 1
		case err == nil:
			line = counted
		}
	}
	if m := noAnchor.FindStringSubmatch(reason); m != nil { // the one message that quotes the file
		line = lineAt(text, bytes.Index(text, []byte("*"+m[1])))
		reason = "aliases are not followed: write the value out, in quotes if it begins with *"
	}
	if at := tabbed.FindIndex(text); at != nil && lineAt(text, at[0]) == line {
		return &Error{File: name, Line: line, Reason: "is indented with a tab: YAML takes spaces only"}
	}
	return &Error{File: name, Line: min(line, lineAt(text, len(text))), Reason: reason}
}

// lineAt returns the line of the byte at offset.
func lineAt(text []byte, offset int) int {
	return 1 + bytes.Count(text[:max(0, offset)], []byte("\n"))
}
