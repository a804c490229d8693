// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse reads a config in an environment of these variables alone.
func parse(text string, environ ...string) (config.Config, error) {
	return config.Parse("locks.yaml", []byte(text), config.WithEnviron(environ))
}

// all returns what was joined.
func all(t testing.TB, err error) []*config.Error {
	t.Helper()
	if e, ok := errors.AsType[*config.Error](err); ok && !joined(err) {
		return []*config.Error{e}
	}
	var found []*config.Error
	if err != nil {
		for _, one := range err.(interface{ Unwrap() []error }).Unwrap() {
			e, ok := errors.AsType[*config.Error](one)
			if !ok {
				t.Fatalf("%T: %v, want a *config.Error", one, one)
			}
			found = append(found, e)
		}
	}
	return found
}

func joined(err error) bool { _, ok := err.(interface{ Unwrap() []error }); return ok }
