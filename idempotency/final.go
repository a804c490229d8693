// SPDX-License-Identifier: Apache-2.0

package idempotency

import "fmt"

// Final is for a write to return when the answer is a no that will stay one: the
// account is closed, the card was refused. What the write has done in its
// transaction is rolled back; body is stored and given to every later call, with
// an error that is [ErrFinal]. Any other error of a write stores nothing, so that
// the same key may be tried again. err may be nil; later calls do not get it.
func Final(body []byte, err error) error {
	return &final{body: body, err: err}
}

type final struct {
	body []byte
	err  error
}

func (f *final) Error() string {
	if f.err == nil {
		return ErrFinal.Error()
	}
	return fmt.Sprintf("%v: %v", ErrFinal, f.err)
}

func (f *final) Unwrap() []error {
	if f.err == nil {
		return []error{ErrFinal}
	}
	return []error{ErrFinal, f.err}
}
