// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"time"

	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
)

// Config is what a file and the environment set. The tags are the fields' names,
// defaults and bounds; a section without tags but yaml holds more fields.
type Config struct {
	// Namespace precedes every key in both tiers, so that services can share
	// servers: 1 to 63 of a-z, 0-9, "_" and "-".
	Namespace string `yaml:"namespace" default:"default"`
	Redis     Redis  `yaml:"redis"`
	MySQL     MySQL  `yaml:"mysql"`
	// Breaker is when a tier counts as out.
	Breaker Breaker `yaml:"breaker"`
	// Defaults are the terms of keys whose policy says nothing else, and of keys
	// without a policy.
	Defaults Terms `yaml:"defaults"`
	// Policies are looked through in their order; the first that matches holds.
	Policies []Policy `yaml:"policies"`
	Sweep    Sweep    `yaml:"sweep"`
	// Drain is how long a closing locker keeps renewing what is still held.
	Drain time.Duration `yaml:"drain" default:"0s" min:"0s"`
}

// Redis is the filter.
type Redis struct {
	// URL begins with redis://, rediss:// or unix://. Empty: the application
	// brings a client of its own, or none.
	URL Secret `yaml:"url"`
	// Timeout bounds each call.
	Timeout time.Duration `yaml:"timeout" default:"200ms" min:"1ms" max:"1s"`
}

// MySQL is the authority.
type MySQL struct {
	// DSN is that of github.com/go-sql-driver/mysql. Empty: the application brings
	// a pool of its own.
	DSN Secret `yaml:"dsn"`
	// Timeout bounds a claim or a look on the server.
	Timeout time.Duration `yaml:"timeout" default:"500ms" min:"10ms" max:"1m"`
	// MaxOpenConns is the size of the lock's own pool.
	MaxOpenConns int `yaml:"max_open_conns" default:"8" min:"7"`
}

// Breaker is as in [breaker.Settings]; the probe's own timeout follows from
// ProbeEvery.
type Breaker struct {
	Consecutive uint32        `yaml:"consecutive" default:"5" min:"1"`
	ProbeEvery  time.Duration `yaml:"probe_every" default:"500ms" min:"2ms"`
	Ratio       float64       `yaml:"ratio" default:"0.8" min:"0.01" max:"1"`
	MinCalls    uint32        `yaml:"min_calls" default:"20" min:"1"`
	MinSpan     time.Duration `yaml:"min_span" default:"60s" min:"1ms"`
	GlobalAfter time.Duration `yaml:"global_after" default:"60s" min:"1ms"`
}

// Terms are what a lease is asked for with.
type Terms struct {
	// TTL is how long a lease lasts without renewal; at least twice MySQL.Timeout.
	TTL time.Duration `yaml:"ttl" default:"10s" min:"500ms" max:"24h"`
	// Wait is how long Acquire waits for a key; at least MySQL.Timeout.
	Wait time.Duration `yaml:"wait" default:"3s" min:"0s"`
	// MaxHold bounds how long a lease may be held, renewals included; 0 means
	// without bound.
	MaxHold time.Duration `yaml:"max_hold" default:"5m" min:"0s"`
	// MaxWaiters bounds how many callers of a process may wait for one key.
	MaxWaiters int `yaml:"max_waiters" default:"10000" min:"1"`
	// Handoffs is how many tenures of a process one lease may serve, one after
	// the other.
	Handoffs int `yaml:"handoffs" default:"16384" min:"1" max:"65536"`
	// HandoffFor is how long a lease may be handed on while others wait.
	HandoffFor time.Duration `yaml:"handoff_for" default:"100ms" min:"0s"`
	// GiveWay is the pause in which another process may take the key.
	GiveWay time.Duration `yaml:"give_way" default:"5ms" min:"0s"`
}

// Policy is what holds for the keys that Match matches. Its terms are complete:
// what a file leaves out is that of Config.Defaults.
type Policy struct {
	// Match is a doublestar glob over keys without their namespace.
	Match string     `yaml:"match"`
	Tiers tier.Tiers `yaml:"tiers" default:"both"`
	// Degrade is what happens, in this order, when the deciding tier does not
	// serve. In a file the default is [retry, fail_closed]; an empty list is an
	// error.
	Degrade fallback.Ladder `yaml:"degrade"`
	// LocalFor is how long the rung local lasts in one outage.
	LocalFor time.Duration `yaml:"local_for" min:"0s"`
	// Attempts and Backoff are those of the rung retry.
	Attempts int           `yaml:"attempts" default:"2" min:"1"`
	Backoff  time.Duration `yaml:"backoff" default:"100ms" min:"1ms"`
	Terms
}

// Sweep is the clean-up of rows that nobody uses.
type Sweep struct {
	// Every is how often; 0 leaves it to other processes.
	Every time.Duration `yaml:"every" default:"5m" min:"0s"`
	// Retention is how long a row outlives its last use.
	Retention time.Duration `yaml:"retention" default:"24h" min:"1m"`
}

// Default returns a Config with the default of every field, and no policies.
func Default() Config {
	var c Config
	setDefaults(reflect.ValueOf(&c).Elem())
	return c
}

// NewPolicy returns a policy for the keys that match has, with c's terms and the
// default of every other field.
func (c Config) NewPolicy(match string) Policy {
	var p Policy
	setDefaults(reflect.ValueOf(&p).Elem())
	p.Match, p.Degrade, p.Terms = match, fallback.Default(), c.Defaults
	return p
}
