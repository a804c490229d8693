// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
)

// Secret is an address that may hold a password. However it is printed, logged or
// marshalled, the password is not shown: only Reveal gives it away. The text is
// behind a pointer, since fmt prints the unexported fields of others without
// asking their methods. The zero value is empty.
type Secret struct{ text *string }

// hidden stands for a password, or for all of an address that is not understood
// well enough to say where its password is.
const hidden = "***"

// NewSecret returns the secret of that text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text}
}

// Reveal returns all of the address, to connect with.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String returns the address without its password and its parameters.
func (s Secret) String() string {
	switch text := s.Reveal(); {
	case text == "":
		return ""
	case strings.Contains(text, "://"):
		return redactURL(text)
	default:
		return redactDSN(text)
	}
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return fmt.Sprintf("config.Secret(%q)", s.String()) }

// Format is String, for every verb.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	switch {
	case verb == 'v' && f.Flag('#'):
		text = s.GoString()
	case verb == 'q':
		text = fmt.Sprintf("%q", text)
	}
	_, _ = f.Write([]byte(text)) // fmt keeps no errors of it either
}

// MarshalText is String, for encoders of JSON, YAML and logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Where a character is missing or too many, the password is read as another part
// of the address: so a part is shown only when it is what it should be, and
// nothing is when one is not.
var (
	userName = regexp.MustCompile(`^[\w.-]+$`)
	hostPort = regexp.MustCompile(`^([^:@]*|\[[\da-fA-F:.]+])(:\d*)?$`)
	database = regexp.MustCompile(`^/?\d*$`)
)

// redactURL hides what is between the scheme and the host, but for a name.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || strings.Contains(u.Host+u.Path+u.RawQuery+u.Fragment, "@") || !hostPort.MatchString(u.Host) ||
		u.Scheme != "unix" && !database.MatchString(u.Path) {
		return hidden
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	at := ""
	if u.User != nil {
		at = hidden + "@"
		if password, _ := u.User.Password(); password != "" && userName.MatchString(u.User.Username()) {
			at = u.User.Username() + ":" + at
		}
	}
	return strings.Replace(shown.String(), "://", "://"+at, 1)
}

// redactDSN hides what is between the name and the network. A network that the
// application has registered hides all, since nobody here knows its name.
func redactDSN(text string) string {
	c, err := mysql.ParseDSN(text)
	switch {
	case err != nil, strings.Contains(c.Addr+c.DBName, "@"):
		return hidden
	case c.Net != "tcp" && c.Net != "unix", c.Net == "tcp" && !hostPort.MatchString(c.Addr):
		return hidden
	case c.User != "" && !userName.MatchString(c.User):
		return hidden
	}
	at := ""
	switch {
	case c.Passwd != "":
		at = c.User + ":" + hidden + "@"
	case c.User != "":
		at = c.User + "@"
	}
	return fmt.Sprintf("%s%s(%s)/%s", at, c.Net, c.Addr, c.DBName)
}

// wrongURL says why an address is no URL of a Redis server. The reason never
// holds a part of it.
func (s Secret) wrongURL() string {
	if s.text == nil {
		return ""
	}
	u, err := url.Parse(*s.text)
	if err != nil || !hostPort.MatchString(u.Host) {
		return "is no URL; percent-encode what is special in its password"
	}
	switch u.Scheme {
	case "redis", "rediss":
		if u.Host == "" {
			return "names no host: want redis://[user:password@]host[:port][/database]"
		}
	case "unix":
		if u.Path == "" {
			return "names no socket: want unix:///path/to.sock"
		}
	default:
		return "begins with none of redis://, rediss://, unix://"
	}
	// The client's own error may hold a part of it.
	if _, err := redis.ParseURL(*s.text); err != nil {
		return "has a path or a query that the client does not take: want redis://[user:password@]host[:port][/database][?name=value]"
	}
	return ""
}

// wrongDSN says why an address is no DSN of a MySQL server. The reason never
// holds a part of it.
func (s Secret) wrongDSN() string {
	if s.text == nil {
		return ""
	}
	c, err := mysql.ParseDSN(*s.text)
	switch {
	case err != nil, strings.Contains(c.Net, ":"): // without the "@" a password is part of the network
		return "is no DSN: want user:password@tcp(host:port)/database?name=value"
	case c.DBName == "":
		return "names no database: want user:password@tcp(host:port)/database"
	}
	return ""
}
