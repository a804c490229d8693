// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
)

// settling is a watch whose file and events are the test's.
type settling struct {
	events chan fsnotify.Event
	errs   chan error
	looks  int
	told   []time.Duration // of Config.Drain, or -1 for an error

	mu    sync.Mutex
	drain time.Duration
	err   error
}

func newSettling(t *testing.T) *settling {
	s := &settling{events: make(chan fsnotify.Event), errs: make(chan error)}
	w := &watch{told: Default()}
	w.load = func() (Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.looks++
		c := Default()
		c.Drain = s.drain
		return c, s.err
	}
	w.changed = func(c Config, err error) {
		if err != nil {
			c.Drain = -1
		}
		s.told = append(s.told, c.Drain)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx, s.events, s.errs) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// holds sets what the file does.
func (s *settling) holds(drain time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain, s.err = drain, err
}

func (s *settling) wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestWatch_waitsUntilTheFileHasSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSettling(t)
		s.wait(settled)
		require.Equal(t, 1, s.looks, "at the start")

		for range 5 { // a file that is written bit by bit
			s.holds(0, errors.New("half"))
			s.events <- fsnotify.Event{}
			s.wait(settled - time.Millisecond)
		}
		require.Equal(t, 1, s.looks)
		s.holds(time.Second, nil)
		s.wait(time.Millisecond)
		require.Equal(t, 2, s.looks)
		require.Equal(t, []time.Duration{time.Second}, s.told)

		s.wait(5 * time.Second)
		require.Equal(t, 2, s.looks)
	})
}

func TestWatch_looksThoughTheDirectoryNeverRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSettling(t)
		s.wait(settled)
		s.holds(time.Second, nil)
		for start := time.Now(); time.Since(start) < settledAtMost-10*time.Millisecond; s.wait(10 * time.Millisecond) {
			s.events <- fsnotify.Event{}
			require.Equal(t, 1, s.looks)
		}
		s.events <- fsnotify.Event{}
		s.wait(10 * time.Millisecond)
		require.Equal(t, []time.Duration{time.Second}, s.told)
	})
}

func TestWatch_looksWithoutAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSettling(t)
		s.wait(settled)
		s.holds(time.Second, nil)
		s.wait(lookAnyway)
		require.Equal(t, []time.Duration{time.Second}, s.told)

		s.holds(2*time.Second, nil)
		s.errs <- fsnotify.ErrEventOverflow
		s.wait(settled)
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, s.told)
	})
}

func TestWatch_tellsEachOutcomeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSettling(t)
		look := func(drain time.Duration, err error) {
			s.holds(drain, err)
			s.events <- fsnotify.Event{}
			s.wait(settled)
		}
		one, two := errors.New("one"), errors.New("two")
		look(0, nil)
		look(1, nil)
		look(1, nil)
		look(9, one)
		look(9, errors.New("one"))
		look(9, two)
		look(9, one)
		look(1, nil)
		look(1, nil)
		look(9, one)
		look(0, nil)
		require.Equal(t, []time.Duration{1, -1, -1, -1, 1, -1, 0}, s.told)
	})
}

// A link that is turned to a new release each time must not leave a watch behind
// on each of the old ones.
func TestFollow_leavesOldDirectories(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	path := filepath.Join(root, "names", "locks.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	events, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	defer func() { require.NoError(t, events.Close()) }()
	for _, release := range []string{"one", "two", "three"} {
		dir := filepath.Join(root, release)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "locks.yaml"), []byte("policies: []\n"), 0o600))
		require.NoError(t, os.Symlink(filepath.Join(dir, "locks.yaml"), path+"~"))
		require.NoError(t, os.Rename(path+"~", path))
		follow(events, path)
		require.ElementsMatch(t, []string{filepath.Dir(path), dir}, events.WatchList())
	}
}
