// SPDX-License-Identifier: Apache-2.0

// Package driver holds the two contracts a lock is composed of: a [Filter],
// which keeps the crowd away and may forget, lie or vanish at any moment, and
// an [Authority], which alone decides who holds a key.
//
// It is a leaf: it imports nothing of this module, so that drivers depend on
// it and never on the composition in package tier. Users of the lock need it
// only to write a driver of their own or to read a [Tenure].
//
// Two rules hold for every method of both contracts:
//
//   - A call returns when its context ends, whatever the server does, and
//     within a limit of its own when the context has none.
//   - A call that returns an error leaves nothing behind that its caller would
//     have to know about: what its request may have done on the server is
//     undone by the driver, in the background, until that is certain. Close
//     waits for this work.
//
// Times that leave a driver are local and carry Go's monotonic reading; they
// are counted from before the request was sent, so that they are never later
// than what the server meant.
package driver
