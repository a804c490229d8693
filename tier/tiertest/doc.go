// SPDX-License-Identifier: Apache-2.0

// Package tiertest is for tests: of users, who get a working locker without a
// server from [NewLocker], and of drivers, whose promises [Run] checks by
// number.
//
// The in-memory [Filter] and [Authority] keep the contracts of package
// tier/driver, can be taken down and brought up, and can lose replies. They are
// no lock between processes.
package tiertest
