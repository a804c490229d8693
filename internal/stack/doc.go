// SPDX-License-Identifier: Apache-2.0

// Package stack runs private Redis, MariaDB and MySQL servers as child processes, and fault proxies in front of them.
//
// Servers listen on free loopback ports, keep their data in temporary directories, are durable the way a production
// server is by default, and die with the process that started them, however it ends. Faults are real ones: [Server.Kill]
// is SIGKILL, [Server.Pause] is SIGSTOP, and a [Proxy] cuts, delays, black-holes, or loses the one reply a test is about.
//
// TIERLOCK_REDIS_URL and TIERLOCK_MYSQL_DSN name existing servers to use instead; those cannot be killed ([ErrNotOurs]).
//
// The demo links this package, so it does not import "testing": helpers for tests take the small interface [TB].
// A package's tests share one server per engine:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(stack.Main(m)) }
//
//	func TestX(t *testing.T) {
//		for _, engine := range stack.Engines() {
//			t.Run(engine.String(), func(t *testing.T) {
//				db := stack.SharedSQL(t, engine).CreateDatabase(t)
//				...
package stack
