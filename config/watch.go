// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settled is how long nothing may happen before the file is looked at, and
	// settledAtMost how long that is waited for: others write to the directory too.
	settled       = 100 * time.Millisecond
	settledAtMost = time.Second
	// lookAnyway is when a file is looked at of which no event told: it is on a
	// network, or a directory on its way was replaced.
	lookAnyway = 10 * time.Second
)

// Watch calls changed whenever the file at path comes to hold another config than
// the last one told, current at first: so nothing that happened since current was
// loaded is missed. Once for a change, when the file has settled, however it was
// written; not at all when the new text means the same. What cannot be used is
// told once, as the last good config with the error, and so is the way back.
//
// It blocks until ctx ends and then returns nil; another error means that the
// file's directory cannot be watched. changed is called on Watch's goroutine, one
// call after the other, outside all locks.
func Watch(ctx context.Context, path string, current Config, changed func(Config, error), opts ...Option) error {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("config: watch %s: %w", path, err)
	}
	defer func() { _ = events.Close() }() // what it could say is that it is closed
	if err := events.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("config: watch %s: %w", path, err)
	}
	w := watch{
		load: func() (Config, error) {
			follow(events, path)
			return Load(path, opts...)
		},
		changed: changed,
		told:    current,
	}
	w.run(ctx, events.Events, events.Errors)
	return nil
}

// follow watches the directory of the file's name and that of the file itself,
// which differ where the name is a link. Directories are watched, never the file:
// an editor replaces it, and Kubernetes the link that it is behind.
func follow(events *fsnotify.Watcher, path string) {
	wanted := []string{filepath.Dir(path)}
	if file, err := filepath.EvalSymlinks(path); err == nil {
		wanted = append(wanted, filepath.Dir(file))
	}
	for _, dir := range events.WatchList() {
		if !slices.Contains(wanted, dir) {
			_ = events.Remove(dir) // it may be gone
		}
	}
	for _, dir := range wanted {
		_ = events.Add(dir) // it may not be there now; it is looked at all the same
	}
}

// watch is one Watch under way.
type watch struct {
	load    func() (Config, error)
	changed func(Config, error)

	told  Config // the last good one
	error string // told after it
}

func (w *watch) run(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	anyway := time.NewTicker(lookAnyway)
	defer anyway.Stop()
	since := time.Now() // of the first event that was not yet answered by a look
	look := time.NewTimer(settled)
	defer look.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			waiting = false
			w.look()
			continue
		case <-events:
		case <-errs: //nolint:errcheck // events were lost, and the file is looked at
		case <-anyway.C:
		}
		if !waiting {
			waiting, since = true, time.Now()
		}
		look.Reset(min(settled, settledAtMost-time.Since(since)))
	}
}

// look tells what the file holds, unless it was told already.
func (w *watch) look() {
	c, err := w.load()
	switch {
	case err != nil && err.Error() == w.error, err == nil && w.error == "" && reflect.DeepEqual(c, w.told):
		return
	case err != nil:
		w.error = err.Error()
	default:
		w.told, w.error = c, ""
	}
	w.changed(w.told, err)
}
