// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/breaker"
	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/fallback"
	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// TestParse_refuses holds every kind of bad input to the whole of its message.
func TestParse_refuses(t *testing.T) {
	t.Parallel()
	policies := func(lines ...string) string { return "policies:\n" + strings.Join(lines, "\n") + "\n" }
	for _, c := range []struct {
		name, text string
		want       string // the messages, a line each
	}{
		// Rungs.
		{
			"local without local_for", policies(`- {match: "a/**"}`, `- match: b`, `  degrade: [retry, local, fail_closed]`),
			`locks.yaml:4: policies[1].degrade: [retry, local, fail_closed]: local_for is missing: say how long the rung local may last in an outage`,
		},
		{
			"local_for without local", policies(`- match: b`, `  local_for: 3s`),
			`locks.yaml:3: policies[0].local_for: 3s: 3s without the rung local means nothing`,
		},
		{
			"local_for of nothing", policies(`- match: b`, `  degrade: [local]`, `  local_for: 0s`),
			`locks.yaml:4: policies[0].local_for: 0s: is missing: say how long the rung local may last in an outage`,
		},
		{
			"an empty ladder", policies(`- match: b`, `  degrade: []`),
			`locks.yaml:3: policies[0].degrade: []: is empty: fail_closed alone refuses at once`,
		},
		{
			"a rung after fail_closed", policies(`- match: b`, `  degrade:`, `  - fail_closed`, `  - local`, `  local_for: 1s`),
			`locks.yaml:3: policies[0].degrade: [fail_closed, local]: local after fail_closed is never reached`,
		},
		{
			"a rung twice", policies(`- {match: b, degrade: [retry, retry]}`),
			`locks.yaml:2: policies[0].degrade: [retry, retry]: retry stands there twice`,
		},
		{
			"retry after local", policies(`- {match: b, degrade: [local, retry], local_for: 1s}`),
			`locks.yaml:2: policies[0].degrade: [local, retry]: retry after local is never reached: what needs no authority does not ask it again`,
		},
		{
			"an unknown rung", policies(`- {match: b, degrade: [retry, fail_close]}`),
			`locks.yaml:2: policies[0].degrade: [retry, fail_close]: fail_close is unknown: want retry, local or fail_closed`,
		},
		{
			"two unknown rungs", policies(`- {match: b, degrade: [first, second]}`),
			`locks.yaml:2: policies[0].degrade: [first, second]: first is unknown: want retry, local or fail_closed`,
		},
		{
			"a ladder in a ladder", policies(`- {match: b, degrade: [[retry]]}`),
			`locks.yaml:2: policies[0].degrade: "[\"\"]": want names of rungs: retry, local or fail_closed`,
		},
		{
			"a ladder of one word", policies(`- {match: b, degrade: fail_closed}`),
			`locks.yaml:2: policies[0].degrade: is one value, want a list, as in [retry, fail_closed]`,
		},
		{
			"terms of a rung that is not there", policies(`- match: b`, `  degrade: [fail_closed]`, `  attempts: 3`, `  backoff: 1s`),
			`locks.yaml:4: policies[0].attempts: 3: without the rung retry means nothing: put retry into degrade, or leave it out
			locks.yaml:5: policies[0].backoff: 1s: without the rung retry means nothing: put retry into degrade, or leave it out`,
		},
		{
			"no attempts", policies(`- {match: b, attempts: 0}`),
			`locks.yaml:2: policies[0].attempts: 0: must be at least 1`,
		},
		{
			"a backoff beyond the wait", policies(`- {match: b, wait: 2s, backoff: 2s}`),
			`locks.yaml:2: policies[0].backoff: 2s: must be less than wait (2s): the rung retry stays within it`,
		},
		// Patterns.
		{
			"a pattern twice", policies(`- {match: a}`, `- {match: b}`, `- {match: a}`),
			`locks.yaml:4: policies[2].match: a: is never reached: policy 0 (a on line 2) comes first and matches the same keys`,
		},
		{
			"a pattern under a prefix", policies(`- {match: c}`, `- {match: "a/**"}`, `- {match: "a/*/b"}`),
			`locks.yaml:4: policies[2].match: a/*/b: is never reached: policy 1 (a/** on line 3) comes first and matches the same keys`,
		},
		{"a bad glob", policies(`- match: "a/[b"`), `locks.yaml:2: policies[0].match: "a/[b": is no glob`},
		{"an empty pattern", policies(`- match: ""`), `locks.yaml:2: policies[0].match: "": is empty: give it a value, or leave the field out`},
		{"no pattern", policies(`- {match: a}`, `- {ttl: 5s}`), `locks.yaml:3: policies[1].match: "": is missing: say which keys, as in "payment/**"`},
		{
			"a policy that is none", policies(`- {match: a}`, `- b`),
			`locks.yaml:3: policies[1]: is one value, want fields, as in {match: "payment/**", degrade: [fail_closed]}`,
		},
		{"policies that are none", "policies: {match: a}\n", `locks.yaml:1: policies: is a mapping, want a list`},
		{
			"too many", policies(strings.Split(strings.Repeat("- {match: x}\n", 1001), "\n")...),
			`locks.yaml:1: policies: holds 1001, at most 1000 are looked through`,
		},
		{"unknown tiers", policies(`- {match: b, tiers: radis}`), `locks.yaml:2: policies[0].tiers: radis: is unknown: want both, mysql or redis`},
		// Fields beside each other.
		{
			"a short ttl and wait", "mysql:\n  timeout: 1s\ndefaults:\n  ttl: 1999ms\n  wait: 999ms\npolicies: [{match: a}]\n",
			`locks.yaml:4: defaults.ttl: 1999ms: must be at least twice mysql.timeout (1s): 2s
			locks.yaml:5: defaults.wait: 999ms: must be at least mysql.timeout (1s): 1s`,
		},
		{
			"a short ttl and wait of a policy", policies(`- {match: a}`, `- match: b`, `  ttl: 900ms`, `  wait: 1ms`),
			`locks.yaml:4: policies[1].ttl: 900ms: must be at least twice mysql.timeout (500ms): 1s
			locks.yaml:5: policies[1].wait: 1ms: must be at least mysql.timeout (500ms): 500ms`,
		},
		{
			"a timeout too long for a default", "mysql: {timeout: 6s}\ndefaults:\n  wait: 6s\npolicies: [{match: a}]\n",
			`locks.yaml:1: mysql.timeout: 6s: is too long for defaults.ttl (10s), which must be at least twice it: set defaults.ttl too`,
		},
		{"handoffs", "defaults:\n  handoffs: 65537\n", `locks.yaml:2: defaults.handoffs: 65537: must be at most 65536`},
		{"handoffs of a policy", policies(`- match: a`, `  handoffs: 70000`), `locks.yaml:3: policies[0].handoffs: 70000: must be at most 65536`},
		{
			"a tier given up before it was asked", "breaker:\n  probe_every: 2s\n  global_after: 1s\n",
			`locks.yaml:3: breaker.global_after: 1s: must not be under probe_every (2s): the tier would be given up before it was asked`,
		},
		// Values by themselves.
		{"a namespace", "namespace: Shop!\n", `locks.yaml:1: namespace: "Shop!": must match [a-z0-9_-]{1,63}`},
		{"a long ttl", "defaults: {ttl: 25h}\n", `locks.yaml:1: defaults.ttl: 25h: must be at most 24h`},
		{"a tiny ttl", "mysql: {timeout: 10ms}\ndefaults: {ttl: 499ms}\n", `locks.yaml:2: defaults.ttl: 499ms: must be at least 500ms`},
		{
			"negative durations", "drain: -1s\ndefaults: {max_hold: -5m}\n",
			`locks.yaml:1: drain: -1s: must not be negative
			locks.yaml:2: defaults.max_hold: -5m: must not be negative`,
		},
		{"no unit", "redis: {timeout: 200}\n", `locks.yaml:1: redis.timeout: 200: has no unit: write ms, s, m or h behind the number`},
		{"another unit", "sweep: {retention: 1d}\n", `locks.yaml:1: sweep.retention: 1d: is no duration: want a number and a unit, as in 500ms, 10s, 5m or 24h`},
		{"no number", "mysql: {max_open_conns: many}\n", `locks.yaml:1: mysql.max_open_conns: many: is no whole number`},
		{"a half", "mysql: {max_open_conns: 7.5}\n", `locks.yaml:1: mysql.max_open_conns: 7.5: is no whole number`},
		{"a huge number", "breaker: {min_calls: 99999999999}\n", `locks.yaml:1: breaker.min_calls: 99999999999: is too large a number`},
		{"a huger number", "breaker: {min_calls: 99999999999999999999}\n", `locks.yaml:1: breaker.min_calls: 99999999999999999999: is too large a number`},
		{"a negative number", "breaker: {consecutive: -1}\n", `locks.yaml:1: breaker.consecutive: -1: must not be negative`},
		{"no failures at all", "breaker: {consecutive: 0}\n", `locks.yaml:1: breaker.consecutive: 0: must be at least 1`},
		{"a ratio", "breaker: {ratio: 80%}\n", `locks.yaml:1: breaker.ratio: 80%: is no number`},
		{"a ratio that is none", "breaker: {ratio: NaN}\n", `locks.yaml:1: breaker.ratio: NaN: must be at least 0.01`},
		{"few connections", "mysql: {max_open_conns: 6}\n", `locks.yaml:1: mysql.max_open_conns: 6: must be at least 7`},
		{"a Redis timeout", "redis: {timeout: 2s}\n", `locks.yaml:1: redis.timeout: 2s: must be at most 1s`},
		{"a list for a value", "drain: [1s]\n", `locks.yaml:1: drain: is a list, want one value`},
		{"a value for a section", "mysql: \"u:hunter2@tcp(h)/d\"\n", `locks.yaml:1: mysql: is one value, want fields, one a line`},
		{
			"fields without a value", "redis:\nmysql: ~\ndrain:\n",
			`locks.yaml:1: redis: has no value: give it one, or leave the field out
			locks.yaml:2: mysql: has no value: give it one, or leave the field out
			locks.yaml:3: drain: has no value: give it one, or leave the field out`,
		},
		// Addresses.
		{"a DSN", "mysql:\n  dsn: \"u:hunter2@tcp(h:1)\"\n", `locks.yaml:2: mysql.dsn: ***: is no DSN: want user:password@tcp(host:port)/database?name=value`},
		{"a DSN without a database", "mysql:\n  dsn: \"u:hunter2@tcp(h:1)/\"\n", `locks.yaml:2: mysql.dsn: u:***@tcp(h:1)/: names no database: want user:password@tcp(host:port)/database`},
		{"a URL", "redis:\n  url: \"redis://:hunter/2@h\"\n", `locks.yaml:2: redis.url: ***: is no URL; percent-encode what is special in its password`},
		{"another scheme", "redis:\n  url: \"http://u:hunter2@h/0\"\n", `locks.yaml:2: redis.url: http://u:***@h/0: begins with none of redis://, rediss://, unix://`},
		{"no host", "redis:\n  url: \"redis:///0\"\n", `locks.yaml:2: redis.url: redis:///0: names no host: want redis://[user:password@]host[:port][/database]`},
		{"no socket", "redis:\n  url: \"unix://\"\n", `locks.yaml:2: redis.url: unix:: names no socket: want unix:///path/to.sock`},
		{"an address for a rung", policies(`- {match: a, degrade: ["redis://:hunter2"]}`), `locks.yaml:2: policies[0].degrade: [***]: *** is unknown: want retry, local or fail_closed`},
		{"an address for a time", "redis:\n  timeout: \"u:hunter2\"\n", `locks.yaml:2: redis.timeout: ***: is no duration: want a number and a unit, as in 500ms, 10s, 5m or 24h`},
		{"a database that is no number", "redis:\n  url: \"redis://u:hunter2@h/lock\"\n", `locks.yaml:2: redis.url: ***: has a path or a query that the client does not take: want redis://[user:password@]host[:port][/database][?name=value]`},
		{"an unknown parameter", "redis:\n  url: \"redis://u:hunter2@h/0?x=1\"\n", `locks.yaml:2: redis.url: redis://u:***@h/0: has a path or a query that the client does not take: want redis://[user:password@]host[:port][/database][?name=value]`},
		{"a URL without its @", "redis:\n  url: \"redis://u:hunter2h:6379/0\"\n", `locks.yaml:2: redis.url: ***: is no URL; percent-encode what is special in its password`},
		{"a DSN without its @", "mysql:\n  dsn: \"u:hunter2tcp(h:1)/d\"\n", `locks.yaml:2: mysql.dsn: ***: is no DSN: want user:password@tcp(host:port)/database?name=value`},
		{"a good URL beside something else", "redis: {url: \"unix:///run/redis.sock\"}\ndrain: x\n", `locks.yaml:2: drain: x: is no duration: want a number and a unit, as in 500ms, 10s, 5m or 24h`},
		{"an address for a namespace", "namespace: \"u:hunter2@tcp(h:1)/d\"\n", `locks.yaml:1: namespace: ***: must match [a-z0-9_-]{1,63}`},
		// Names.
		{"an unknown field", "defaults:\n  tll: 10s\n", `locks.yaml:2: defaults.tll: unknown field; did you mean ttl?`},
		{"an unknown field of a policy", policies(`- match: a`, `  local-for: 1s`), `locks.yaml:3: policies[0].local-for: unknown field; did you mean local_for?`},
		{"nothing like it", "redis:\n  password: hunter2\n", `locks.yaml:2: redis.password: unknown field; known here: url, timeout`},
		{"an address for a name", "u:hunter2@tcp: 1\n", `locks.yaml:1: ***: unknown field; known here: namespace, redis, mysql, breaker, defaults, policies, sweep, drain`},
		{"a merge", "defaults:\n  <<: {ttl: 1s}\n", `locks.yaml:2: defaults.<<: unknown field; known here: ttl, wait, max_hold, max_waiters, handoffs, handoff_for, give_way`},
		{"a name twice", "drain: 1s\nnamespace: a\ndrain: 2s\n", `locks.yaml:3: drain: stands there twice, first on line 1`},
		{"a section twice", "redis: {timeout: 1s}\nredis: {timeout: 2s}\n", `locks.yaml:2: redis: stands there twice, first on line 1`},
		{"a list for a name", "drain: 1s\n? [a]\n: b\n", `locks.yaml:2: a field's name is a plain word`},
		// YAML.
		{"an alias", "redis: &x {timeout: 1s}\nmysql: *x\n", `locks.yaml:2: mysql: aliases are not followed: write the value out`},
		{"an alias of nothing", "drain: 1s\nmysql: {dsn: *hunter2}\n", `locks.yaml:2: aliases are not followed: write the value out, in quotes if it begins with *`},
		{"a tag", "drain: !!str 1s\n", `locks.yaml:1: drain: tags are not read: write the value alone`},
		{"a tag of all", "--- !!map\ndrain: 1s\n", `locks.yaml:1: want fields, one a line, as in namespace: shop`},
		{"a tab", "redis:\n\ttimeout: 1s\n", `locks.yaml:2: is indented with a tab: YAML takes spaces only`},
		{"a tab at the start", "\tdrain: 1s\n", `locks.yaml:1: is indented with a tab: YAML takes spaces only`},
		{"two levels of indentation", "redis:\n  timeout: 1s\n url: x\ndrain: 1s\n", `locks.yaml:3: did not find expected key`},
		{"a colon in a value", "drain: 1s\nmysql: {timeout: 1s}\nnamespace: a: b\n", `locks.yaml:3: mapping values are not allowed in this context`},
		{"a brace", "}\n", `locks.yaml:1: did not find expected node content`},
		{"an unclosed list", "drain: 1s\npolicies: [\n", `locks.yaml:3: did not find expected node content`},
		{"nothing", "", `locks.yaml:1: holds nothing; a config of defaults alone is written as: policies: []`},
		{"a comment", "# drain: 1s\n", `locks.yaml:1: holds nothing; a config of defaults alone is written as: policies: []`},
		{"null", "---\n~\n", `locks.yaml:1: holds nothing; a config of defaults alone is written as: policies: []`},
		{"a word", "tierlock\n", `locks.yaml:1: want fields, one a line, as in namespace: shop`},
		{"two documents", "drain: 1s\n---\ndrain: 2s\n", `locks.yaml:2: a second document begins: want one a file`},
		{"a bad second document", "drain: 1s\n---\n}\n", `locks.yaml:3: did not find expected node content`},
		{"a byte order mark", "\ufeffdrain: 1s\n", `locks.yaml:1: begins with a byte order mark: save it as UTF-8 without one`},
		{"UTF-16", "\xff\xfed\x00", `locks.yaml:1: begins with a byte order mark: save it as UTF-8 without one`},
		{"Latin-1", "drain: 1s\nnamespace: \xe4\n", `locks.yaml:2: is not UTF-8`},
		{"a control character", "drain: 1s\nnamespace: a\x00\n", `locks.yaml:2: has the control character '\x00'`},
		{"too much", "drain: 1s\n#" + strings.Repeat("x", 1<<20), `locks.yaml: is over 1048576 bytes: is it a config?`},
		// Variables.
		{"not set", "namespace: a\nmysql: {dsn: \"u:${PW}@tcp(h:1)/d\"}\n", `locks.yaml:2: mysql.dsn: ***: the variable PW is not set`},
		{"not closed", "namespace: ${NS\n", `locks.yaml:1: namespace: ${NS: ${ is not closed: write ${NAME}`},
		{"no name", "namespace: ${NS:-a}\n", `locks.yaml:1: namespace: "${NS:-a}": there is no name of a variable between ${ and }: write ${NAME}; there are no defaults`},
		{"no braces", "namespace: $NS\n", `locks.yaml:1: namespace: $NS: a lone $ means nothing: write $$ for the character, ${NAME} for a variable`},
		{"in a ladder", policies(`- match: a`, `  degrade: ["${RUNG}"]`), `locks.yaml:3: policies[0].degrade: [${RUNG}]: the variable RUNG is not set`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(c.text)
			var want []string
			for line := range strings.Lines(c.want) {
				want = append(want, strings.TrimSpace(line))
			}
			require.EqualError(t, err, strings.Join(want, "\n"))
			require.Zero(t, got)
			for _, e := range all(t, err) {
				require.Equal(t, "locks.yaml", e.File)
			}
		})
	}
}

func TestParse_errorHasItsParts(t *testing.T) {
	t.Parallel()
	_, err := parse("namespace: a\npolicies:\n- match: b\n  degrade: [local]\n")
	require.Equal(t, []*config.Error{{
		File: "locks.yaml", Line: 4, Field: "policies[0].degrade", Value: "[local]",
		Reason: "local_for is missing: say how long the rung local may last in an outage",
	}}, all(t, err))
}

func TestParse_manyErrorsAreCutShort(t *testing.T) {
	t.Parallel()
	_, err := parse("redis:\n" + strings.Repeat("  x: 1\n", 1000))
	found := all(t, err)
	require.Len(t, found, 51)
	require.Equal(t, "locks.yaml: and 950 more", found[50].Error())
}

func TestParse_longValuesAreCutShort(t *testing.T) {
	t.Parallel()
	_, err := parse("namespace: " + strings.Repeat("x", 1000) + "\n")
	require.EqualError(t, err, `locks.yaml:1: namespace: "`+strings.Repeat("x", 64)+`"...: must match [a-z0-9_-]{1,63}`)
}

func TestParse_example(t *testing.T) {
	t.Parallel()
	c, err := config.Load("../deploy/tierlock.yaml", config.WithEnviron([]string{"TIERLOCK_MYSQL_PASSWORD=pass:/@word"}))
	require.NoError(t, err)

	want := config.Default()
	want.Namespace = "shop"
	want.Redis.URL = config.NewSecret("redis://127.0.0.1:6379/0")
	want.MySQL.DSN = config.NewSecret("tierlock:pass:/@word@tcp(127.0.0.1:3306)/tierlock")
	payment, inventory, cache := want.NewPolicy("payment/**"), want.NewPolicy("inventory/**"), want.NewPolicy("cache/**")
	inventory.Degrade, inventory.LocalFor = fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed}, 30*time.Second
	cache.Degrade, cache.LocalFor = fallback.Ladder{fallback.Local, fallback.FailClosed}, 10*time.Second
	cache.Tiers, cache.TTL = tier.TiersFilter, 30*time.Second
	want.Policies = []config.Policy{payment, inventory, cache}
	require.Equal(t, want, c)
	require.NoError(t, c.Validate())
}

func TestDefault_isThatOfThePackagesItIsFor(t *testing.T) {
	t.Parallel()
	c := config.Default()
	require.NoError(t, c.Validate())
	require.Equal(t, breaker.Settings{
		Consecutive: 5, ProbeEvery: 500 * time.Millisecond, GlobalAfter: time.Minute,
		Ratio: 0.8, MinCalls: 20, MinSpan: time.Minute,
	}, c.BreakerSettings())
	require.Equal(t, config.Terms{
		TTL: 10 * time.Second, Wait: 3 * time.Second, MaxHold: 5 * time.Minute, MaxWaiters: 10_000,
		Handoffs: 16_384, HandoffFor: 100 * time.Millisecond, GiveWay: 5 * time.Millisecond,
	}, c.Defaults)
	require.Equal(t, config.MySQL{Timeout: 500 * time.Millisecond, MaxOpenConns: 8}, c.MySQL)
	require.Equal(t, config.Redis{Timeout: 200 * time.Millisecond}, c.Redis)
	require.Equal(t, config.Sweep{Every: 5 * time.Minute, Retention: 24 * time.Hour}, c.Sweep)
	require.Zero(t, c.Drain)
	least, err := parse("policies: []\n")
	require.NoError(t, err)
	require.Equal(t, c, least)
}

func TestParse_policiesInheritWhateverTheOrder(t *testing.T) {
	t.Parallel()
	c, err := parse(`
policies:
- {match: a, ttl: 7s, degrade: [fail_closed]}
- {match: b, wait: 0.5s, max_hold: 0, handoffs: 1, max_waiters: 1, handoff_for: 0s, give_way: 1ms, attempts: 5, backoff: 1ms}
defaults: {ttl: 20s, max_hold: 1m}
`, "TIERLOCK_DEFAULTS_WAIT=9s")
	require.NoError(t, err)
	a, b := c.Policies[0], c.Policies[1]
	require.Equal(t, []time.Duration{7 * time.Second, 9 * time.Second, time.Minute}, []time.Duration{a.TTL, a.Wait, a.MaxHold})
	require.Equal(t, fallback.Ladder{fallback.FailClosed}, a.Degrade)
	require.Equal(t, config.Terms{TTL: 20 * time.Second, Wait: 500 * time.Millisecond, MaxWaiters: 1, Handoffs: 1, GiveWay: time.Millisecond}, b.Terms)
	require.Equal(t, fallback.Default(), b.Degrade)
	require.Equal(t, []any{5, time.Millisecond}, []any{b.Attempts, b.Backoff})
}

func TestParse_variables(t *testing.T) {
	t.Parallel()
	c, err := parse(`
namespace: ${A}-$${A}$$
policies: [{match: "${A}${EMPTY}/**", degrade: ["${RUNG}"], ttl: "${TTL}", tiers: "${TIERS}"}]
`, "A=x", "EMPTY=", "RUNG=fail_closed", "TTL=9s", "TIERS=redis")
	require.EqualError(t, err, `locks.yaml:2: namespace: ${A}-$${A}$$: must match [a-z0-9_-]{1,63}`)
	require.Zero(t, c)

	c, err = parse("redis: {url: \"redis://$$A:$$@h\"}\npolicies: [{match: \"${A}${EMPTY}/**\", degrade: [\"${RUNG}\"], ttl: \"${TTL}\", tiers: \"${TIERS}\"}]\n",
		"A=x", "EMPTY=", "RUNG=fail_closed", "TTL=9s", "TIERS=redis")
	require.NoError(t, err)
	require.Equal(t, "redis://$A:$@h", c.Redis.URL.Reveal())
	want := c.NewPolicy("x/**")
	want.Degrade, want.TTL, want.Tiers = fallback.Ladder{fallback.FailClosed}, 9*time.Second, tier.TiersFilter
	require.Equal(t, []config.Policy{want}, c.Policies)
}

func TestParse_environment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		text    string
		environ []string
		want    string // empty: none
	}{
		{"others are left alone", "drain: 1s", []string{
			"TIERLOCK_WITHOUT_MYSQL=1", "TIERLOCK_SOAK=1", "TIERLOCK_SEED=1", "TIERLOCK_TEST_FENCE_NODE=1", "TIERLOCK_MYSQL_PASSWORD=x",
			"TIERLOCK_MYSQL_ROOT_PASSWORD=x", "TIERLOCK_PORT=tcp://10.0.0.1:80", "TIERLOCK_SERVICE_HOST=10.0.0.1",
			"TIERLOCK_REDIS_PORT=tcp://10.0.0.1:6379", "TIERLOCK_MYSQL_SERVICE_PORT=3306", "tierlock_drain=x", "nonsense",
		}, ""},
		{"empty is none", "drain: 1s", []string{"TIERLOCK_DRAIN=", "TIERLOCK_REDIS_URL="}, ""},
		{"named in the file", "mysql: {dsn: \"${TIERLOCK_MYSQL_DSN2}\"}", []string{"TIERLOCK_MYSQL_DSN2=u@tcp(h:1)/d"}, ""},
		{
			"nearly a field's", "drain: 1s",
			[]string{"TIERLOCK_DEFAULT_TTL=3s", "TIERLOCK_MYSQL_DNS=u:hunter2@tcp(h:1)/d"},
			"environment TIERLOCK_DEFAULT_TTL: sets nothing; did you mean TIERLOCK_DEFAULTS_TTL?\n" +
				"environment TIERLOCK_MYSQL_DNS: sets nothing; did you mean TIERLOCK_MYSQL_DSN?",
		},
		{
			"wrong values, after the file's", "drain: x",
			[]string{"TIERLOCK_DEFAULTS_TTL=3", "TIERLOCK_DEFAULTS_WAIT=1ms", "TIERLOCK_REDIS_URL=redis://:hunter/2@h", "TIERLOCK_BREAKER_RATIO=2"},
			"locks.yaml:1: drain: x: is no duration: want a number and a unit, as in 500ms, 10s, 5m or 24h\n" +
				"environment TIERLOCK_BREAKER_RATIO: breaker.ratio: 2: must be at most 1\n" +
				"environment TIERLOCK_DEFAULTS_TTL: defaults.ttl: 3: has no unit: write ms, s, m or h behind the number\n" +
				"environment TIERLOCK_DEFAULTS_WAIT: defaults.wait: 1ms: must be at least mysql.timeout (500ms): 500ms\n" +
				"environment TIERLOCK_REDIS_URL: redis.url: ***: is no URL; percent-encode what is special in its password",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(c.text, c.environ...)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.want)
			}
		})
	}

	c, err := parse("defaults: {ttl: 5s}", "TIERLOCK_NAMESPACE=env", "TIERLOCK_DEFAULTS_TTL=6s", "TIERLOCK_DEFAULTS_MAX_WAITERS=7",
		"TIERLOCK_MYSQL_DSN=u:$p${w@tcp(h:1)/d", "TIERLOCK_REDIS_URL=redis://h", "TIERLOCK_BREAKER_RATIO=0.5", "TIERLOCK_BREAKER_MIN_CALLS=9")
	require.NoError(t, err)
	want := config.Default()
	want.Namespace, want.Defaults.TTL, want.Defaults.MaxWaiters = "env", 6*time.Second, 7
	want.MySQL.DSN, want.Redis.URL = config.NewSecret("u:$p${w@tcp(h:1)/d"), config.NewSecret("redis://h")
	want.Breaker.Ratio, want.Breaker.MinCalls = 0.5, 9
	require.Equal(t, want, c)
}

func TestParse_readsTheProcessesEnvironment(t *testing.T) {
	t.Setenv("TIERLOCK_DRAIN", "3s")
	c, err := config.Parse("locks.yaml", []byte("policies: []"))
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, c.Drain)
}

// A config built by code has no lines, and is judged the same.
func TestValidate(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Namespace = "Shop"
	c.Redis.URL = config.NewSecret("redis://:hunter/2@h")
	c.MySQL.Timeout = 6 * time.Second
	c.Breaker.GlobalAfter = time.Millisecond
	a, b := c.NewPolicy("a/**"), c.NewPolicy("a/b")
	a.Degrade, b.Handoffs, b.Degrade = fallback.Ladder{fallback.Local}, 0, nil
	c.Policies = []config.Policy{a, b}
	before := slices.Clone(c.Policies)
	require.EqualError(t, c.Validate(), strings.Join([]string{
		`policies[1].handoffs: 0: must be at least 1`,
		`namespace: Shop: must match [a-z0-9_-]{1,63}`,
		`redis.url: ***: is no URL; percent-encode what is special in its password`,
		`breaker.global_after: 1ms: must not be under probe_every (500ms): the tier would be given up before it was asked`,
		`defaults.ttl: 10s: must be at least twice mysql.timeout (6s): 12s`,
		`defaults.wait: 3s: must be at least mysql.timeout (6s): 6s`,
		`policies[0].ttl: 10s: must be at least twice mysql.timeout (6s): 12s`,
		`policies[0].wait: 3s: must be at least mysql.timeout (6s): 6s`,
		`policies[1].ttl: 10s: must be at least twice mysql.timeout (6s): 12s`,
		`policies[1].wait: 3s: must be at least mysql.timeout (6s): 6s`,
		`policies[0].local_for: 0s: is missing: say how long the rung local may last in an outage`,
		`policies[1].match: a/b: is never reached: policy 0 ("a/**") comes first and matches the same keys`,
	}, "\n"))
	require.Equal(t, before, c.Policies)
}

// What a config promises is what a locker does with it.
func TestTierOptions_buildALocker(t *testing.T) {
	t.Parallel()
	c, err := parse(`
namespace: shop
defaults: {wait: 1s}
policies:
- {match: "held/**", ttl: 2s, max_hold: 50ms}
`)
	require.NoError(t, err)
	locker, err := tier.New(nil, tiertest.NewAuthority(), c.TierOptions()...)
	require.NoError(t, err)
	defer func() { require.NoError(t, locker.Close(t.Context())) }()

	lease, err := locker.Acquire(t.Context(), "held/a")
	require.NoError(t, err)
	require.Equal(t, "shop/held/a", lease.Tenure().Key)
	require.Less(t, time.Until(lease.Deadline()), 3*time.Second)
	<-lease.Done()
	require.ErrorIs(t, lease.Err(), tier.ErrMaxHold)
	require.NoError(t, lease.Release(t.Context()))

	other, err := locker.Acquire(t.Context(), "other")
	require.NoError(t, err)
	require.Greater(t, time.Until(other.Deadline()), 3*time.Second)
	require.NoError(t, other.Release(t.Context()))

	require.NoError(t, locker.SetPolicies(c.TierPolicies()...))
}

func TestTierPolicies(t *testing.T) {
	t.Parallel()
	c, err := parse("policies: [{match: a, tiers: redis, degrade: [retry, local], local_for: 3s, attempts: 4, backoff: 5ms}, {match: b}]\n")
	require.NoError(t, err)
	got := c.TierPolicies()
	for i := range got {
		require.Len(t, got[i].Options, 6)
		got[i].Options = nil
	}
	require.Equal(t, []tier.Policy{
		{
			Match: "a", Tiers: tier.TiersFilter, Degrade: fallback.Ladder{fallback.Retry, fallback.Local},
			LocalFor: 3 * time.Second, Attempts: 4, Backoff: 5 * time.Millisecond,
		},
		{Match: "b", Degrade: fallback.Default(), Attempts: 2, Backoff: 100 * time.Millisecond},
	}, got)
}

// Each option is seen to arrive by a value that the locker refuses.
func TestTierOptions_areAllPassedOn(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*config.Config){
		"namespace":        func(c *config.Config) { c.Namespace = "X" },
		"ttl":              func(c *config.Config) { c.Defaults.TTL = 1 },
		"wait":             func(c *config.Config) { c.Defaults.Wait = -1 },
		"max hold":         func(c *config.Config) { c.Defaults.MaxHold = -1 },
		"max waiters":      func(c *config.Config) { c.Defaults.MaxWaiters = 0 },
		"drain":            func(c *config.Config) { c.Drain = -1 },
		"breaker":          func(c *config.Config) { c.Breaker.Ratio = 2 },
		"policy":           func(c *config.Config) { c.Policies[0].Match = "" },
		"policy's ttl":     func(c *config.Config) { c.Policies[0].TTL = 1 },
		"policy's wait":    func(c *config.Config) { c.Policies[0].Wait = -1 },
		"policy's maxhold": func(c *config.Config) { c.Policies[0].MaxHold = -1 },
	} {
		c := config.Default()
		c.Policies = []config.Policy{c.NewPolicy("a")}
		spoil(&c)
		_, err := tier.New(nil, tiertest.NewAuthority(), c.TierOptions()...)
		require.Error(t, err, name)
	}
}

func TestLoad_refusesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	huge := dir + "/huge.yaml"
	require.NoError(t, os.WriteFile(huge, []byte("#"+strings.Repeat("x", 1<<20)), 0o600))
	for path, want := range map[string]string{
		dir + "/none.yaml": "there is no such file",
		dir:                "is a directory, want a file",
		huge:               "is over 1048576 bytes: is it a config?",
		os.DevNull:         "is no regular file",
		huge + "/x":        "cannot be looked at: not a directory",
	} {
		c, err := config.Load(path)
		require.EqualError(t, err, path+": "+want)
		require.Zero(t, c)
	}
	_, err := config.Load(dir + "/none.yaml")
	require.ErrorIs(t, err, os.ErrNotExist)
}
