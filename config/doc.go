// SPDX-License-Identifier: Apache-2.0

// Package config reads what a service decides about its locks: a YAML file, and
// the environment over it. What cannot work is refused when it is read, not when
// a tier fails.
package config
