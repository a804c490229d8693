// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxSize bounds a file: what is larger is not a config.
const maxSize = 1 << 20

// Option changes how a config is read.
type Option interface{ apply(*options) }

type options struct{ environ []string }

type option func(*options)

func (f option) apply(o *options) { f(o) }

// WithEnviron sets the environment, as entries NAME=text; nil means none.
// Default: that of the process.
func WithEnviron(environ []string) Option {
	return option(func(o *options) { o.environ = environ })
}

func newOptions(opts []Option) options {
	o := options{environ: os.Environ()}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	return o
}

// Load is [Parse] for a file of at most 1 MiB.
func Load(path string, opts ...Option) (Config, error) {
	text, err := read(path)
	if err != nil {
		return Config{}, err
	}
	return Parse(path, text, opts...)
}

func read(path string) ([]byte, error) {
	wrong := func(reason string, err error) ([]byte, error) {
		return nil, &Error{File: path, Reason: reason, Err: err}
	}
	// Asked before it is opened: opening a pipe waits for who writes to it.
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wrong("there is no such file", err)
	case err != nil:
		return wrong("cannot be looked at: "+cause(err), err)
	case info.IsDir():
		return wrong("is a directory, want a file", nil)
	case !info.Mode().IsRegular():
		return wrong("is no regular file", nil)
	}
	f, err := os.Open(path)
	if err != nil {
		return wrong("cannot be opened: "+cause(err), err)
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return wrong("cannot be read: "+cause(err), err)
	case len(text) > maxSize:
		return wrong(fmt.Sprintf("is over %d bytes: is it a config?", maxSize), nil)
	}
	return text, nil
}

// cause leaves out the path that an error of the file system repeats.
func cause(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return err.Error()
}
