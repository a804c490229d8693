// SPDX-License-Identifier: Apache-2.0

package redisfast

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/tier/driver"
)

//go:embed lua/mark.lua
var markSource string

//go:embed lua/extend.lua
var extendSource string

//go:embed lua/overwrite.lua
var overwriteSource string

//go:embed lua/refresh.lua
var refreshSource string

//go:embed lua/clear.lua
var clearSource string

// script is one Lua file. It is sent by its digest, and whole when the server
// does not have it: after a restart, a failover or SCRIPT FLUSH.
type script struct {
	*redis.Script
	source, digest any // strings, ready to be arguments
}

func newScript(source string) script {
	s := redis.NewScript(source)
	return script{Script: s, source: source, digest: s.Hash()}
}

var (
	markScript      = newScript(markSource)
	extendScript    = newScript(extendSource)
	overwriteScript = newScript(overwriteSource)
	refreshScript   = newScript(refreshSource)
	clearScript     = newScript(clearSource)
)

// invocation is one run of a script: its only key and its arguments.
type invocation struct {
	key  string
	args []any
}

// runAll runs a script for many keys in one pipeline, and once more by its text
// for those whose server did not know it. Commands carry their own errors; the
// result is complete even when some failed.
func (s script) runAll(ctx context.Context, client redis.UniversalClient, calls []invocation) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	pipe := client.Pipeline()
	for i, c := range calls {
		cmds[i] = pipe.EvalSha(ctx, s.Hash(), []string{c.key}, c.args...)
	}
	execute(ctx, pipe)

	// The whole text goes with each of them rather than a SCRIPT LOAD before:
	// keys of a cluster live on different servers, and the cache may be emptied
	// again in between.
	var again []int
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			again = append(again, i)
		}
	}
	if len(again) == 0 {
		return cmds
	}
	pipe = client.Pipeline()
	for _, i := range again {
		cmds[i] = s.Eval(ctx, pipe, []string{calls[i].key}, calls[i].args...)
	}
	execute(ctx, pipe)
	return cmds
}

// execute sends a pipeline. Afterwards each command has its own error: the client
// keeps the one of a connection that was refused its password to itself.
func execute(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for _, cmd := range cmds {
		if c, ok := cmd.(*redis.Cmd); ok && c.Err() == nil && c.Val() == nil {
			c.SetErr(err)
		}
	}
}

// markArgs are the arguments of every script that plants or extends.
func markArgs(m driver.Mark) []any {
	return []any{encodeMark(m), m.TTL.Milliseconds()}
}

// stateOf reads what a script about a mark answered.
func stateOf(cmd *redis.Cmd) (driver.MarkState, error) {
	if err := cmd.Err(); err != nil {
		return driver.MarkState{}, err
	}
	if cmd.Val() == any(int64(1)) {
		return driver.MarkState{Ours: true}, nil
	}
	reply, err := cmd.Slice()
	if err != nil {
		return driver.MarkState{}, err
	}
	if len(reply) != 3 {
		return driver.MarkState{}, fmt.Errorf("script answered %d values", len(reply))
	}
	value, isString := reply[1].(string)
	pttl, isInt := reply[2].(int64)
	if !isString || !isInt {
		return driver.MarkState{}, fmt.Errorf("script answered %T and %T", reply[1], reply[2])
	}
	if value == "" && pttl == 0 {
		return driver.MarkState{}, nil // none stands
	}
	return foreignState(value, pttl), nil
}

// The bounds of a mark's time to live.
const (
	minTTL = time.Millisecond
	maxTTL = 24 * time.Hour
)
