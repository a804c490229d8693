// SPDX-License-Identifier: Apache-2.0

// Package config reads what a service decides about its locks: a YAML file, and
// the environment over it. What cannot work is refused when it is read, not when
// a tier fails: [Load] returns everything that is wrong, each as
//
//	locks.yaml:14: policies[1].degrade: [retry, local]: local_for is missing: say how long ...
//
// # Fields
//
// Every field may be left out. A duration is a number and a unit (ms, s, m, h).
//
//	field                 default  bounds         variable
//	namespace             default                 TIERLOCK_NAMESPACE
//	redis.url             none                    TIERLOCK_REDIS_URL
//	redis.timeout         200ms    1ms to 1s      TIERLOCK_REDIS_TIMEOUT
//	mysql.dsn             none                    TIERLOCK_MYSQL_DSN
//	mysql.timeout         500ms    10ms to 1m     TIERLOCK_MYSQL_TIMEOUT
//	mysql.max_open_conns  8        from 7         TIERLOCK_MYSQL_MAX_OPEN_CONNS
//	breaker.consecutive   5        from 1         TIERLOCK_BREAKER_CONSECUTIVE
//	breaker.probe_every   500ms    from 2ms       TIERLOCK_BREAKER_PROBE_EVERY
//	breaker.ratio         0.8      0.01 to 1      TIERLOCK_BREAKER_RATIO
//	breaker.min_calls     20       from 1         TIERLOCK_BREAKER_MIN_CALLS
//	breaker.min_span      60s      from 1ms       TIERLOCK_BREAKER_MIN_SPAN
//	breaker.global_after  60s      from 1ms       TIERLOCK_BREAKER_GLOBAL_AFTER
//	defaults.ttl          10s      500ms to 24h   TIERLOCK_DEFAULTS_TTL
//	defaults.wait         3s       from 0s        TIERLOCK_DEFAULTS_WAIT
//	defaults.max_hold     5m       from 0s        TIERLOCK_DEFAULTS_MAX_HOLD
//	defaults.max_waiters  10000    from 1         TIERLOCK_DEFAULTS_MAX_WAITERS
//	defaults.handoffs     16384    1 to 65536     TIERLOCK_DEFAULTS_HANDOFFS
//	defaults.handoff_for  100ms    from 0s        TIERLOCK_DEFAULTS_HANDOFF_FOR
//	defaults.give_way     5ms      from 0s        TIERLOCK_DEFAULTS_GIVE_WAY
//	sweep.every           5m       from 0s        TIERLOCK_SWEEP_EVERY
//	sweep.retention       24h      from 1m        TIERLOCK_SWEEP_RETENTION
//	drain                 0s       from 0s        TIERLOCK_DRAIN
//
// Each policy has a match, a doublestar glob over keys without their namespace,
// and may have
//
//	tiers                 both                    both, mysql or redis
//	degrade                                       some of retry, local, fail_closed, in this order; default [retry, fail_closed]
//	local_for             none     from 0s        of the rung local, which needs it
//	attempts              2        from 1         of the rung retry
//	backoff               100ms    from 1ms       of the rung retry; less than wait
//
// and every field of defaults for its own keys. The first policy that matches
// holds; what nothing matches has the defaults and the ladder [retry, fail_closed].
// Beyond the bounds, ttl must be at least twice and wait at least once
// mysql.timeout, local needs local_for, and a pattern equal to or under an
// earlier prefix/** is refused, since no key would reach it.
//
// handoffs, handoff_for, give_way, and a policy's own max_waiters are read and
// checked, and are there for who composes a locker; [Config.TierOptions] has no
// option to pass them on with.
//
// # Environment
//
// A variable of the table sets its field whatever the file says, to its text as it
// stands; an empty one counts as none. Policies cannot be set by it. Other
// variables that begin with TIERLOCK_ are somebody else's and are ignored, except
// that one which is a letter or two away from a field's is an error.
//
// Any value in the file may hold ${NAME}, which is replaced by that variable, and
// has to be set: so passwords stay out of the file. $$ is the character. In a Redis
// URL a password is percent-encoded; in a DSN it stands as it is.
//
// No error and no way to print a [Config] shows a password: addresses are
// [Secret].
//
// # What YAML may hold
//
// One document of at most 1 MiB in UTF-8 without a byte order mark. Unknown and
// repeated fields, fields without a value, tags and aliases are errors.
//
// # Reload
//
// [Watch] tells of each settled change of a file, and once of each error, with
// which the config before it goes on:
//
//	err := config.Watch(ctx, path, current, func(c config.Config, err error) {
//		if err == nil {
//			err = locker.SetPolicies(c.TierPolicies()...)
//		}
//		if err != nil {
//			log.Error("policies stay as they were", zap.Error(err))
//		}
//	})
//
// A reload changes policies, and with them the defaults of the keys that a policy
// matches. Everything else is read when a locker is built.
//
// Structure comes from the nodes of go.yaml.in/yaml/v3, which know their lines,
// and names, defaults, bounds and variables from the fields' tags; a library that
// merges sources into maps would lose the lines, and save one loop.
package config
