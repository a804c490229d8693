// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"os"
	"time"

	"github.com/tierlock/tierlock/config"
)

//go:embed demo.yaml
var ownConfig string

// document is a config as a node gets it: whole, so that all nodes have the same.
type document struct {
	Name string
	Text string
}

// readConfig returns the file that -config names, or the demo's own.
func (o options) readConfig() (document, error) {
	if o.config == "" {
		return document{Name: "demo.yaml", Text: ownConfig}, nil
	}
	text, err := os.ReadFile(o.config)
	if err != nil {
		return document{}, fmt.Errorf("-config: %w", err)
	}
	d := document{Name: o.config, Text: string(text)}
	// What is wrong is said before servers are started; their addresses are not
	// known yet.
	if _, err := d.parse(setup{TTL: o.ttl}); err != nil {
		return document{}, fmt.Errorf("-config: %w", err)
	}
	return d, nil
}

// parse reads the config of a node. The command line wins over the file.
func (d document) parse(s setup) (config.Config, error) {
	environ := []string{
		"TIERLOCK_DEFAULTS_TTL=" + s.TTL.String(),
		"TIERLOCK_MYSQL_TIMEOUT=" + min(500*time.Millisecond, s.TTL/2).String(),
	}
	if s.MySQL != "" {
		environ = append(environ, "TIERLOCK_MYSQL_DSN="+s.MySQL, "TIERLOCK_REDIS_URL="+s.Redis)
	}
	return config.Parse(d.Name, []byte(d.Text), config.WithEnviron(environ))
}
