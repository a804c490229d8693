// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/config"
)

// told is one call of a watch.
type told struct {
	config config.Config
	err    error
}

// watched is a Watch under way, on real files.
type watched struct {
	t     *testing.T
	path  string
	calls chan told
}

func newWatched(t *testing.T, path string, current config.Config) *watched {
	w := &watched{t: t, path: path, calls: make(chan told, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- config.Watch(ctx, path, current, func(c config.Config, err error) { w.calls <- told{c, err} }, config.WithEnviron(nil))
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.Empty(t, w.calls, "told more than was asked about")
	})
	return w
}

// next returns the next call. It comes by an event, long before a file is looked
// at anyway.
func (w *watched) next() told {
	w.t.Helper()
	select {
	case c := <-w.calls:
		return c
	case <-time.After(30 * time.Second):
		w.t.Fatal("not told")
		return told{}
	}
}

func (w *watched) wantDrain(d time.Duration) {
	w.t.Helper()
	c := w.next()
	require.NoError(w.t, c.err)
	require.Equal(w.t, d, c.config.Drain)
}

// until is wantDrain where the file is missing or empty for a moment, which a
// machine may be slow enough to see.
func (w *watched) until(d time.Duration) {
	w.t.Helper()
	for c := w.next(); c.err != nil || c.config.Drain != d; c = w.next() {
		require.Error(w.t, c.err)
		if !errors.Is(c.err, os.ErrNotExist) {
			require.ErrorContains(w.t, c.err, "holds nothing")
		}
	}
}

func draining(seconds int) []byte { return fmt.Appendf(nil, "drain: %ds\n", seconds) }

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

func newFile(t *testing.T, text []byte) (path string, c config.Config) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "locks.yaml")
	write(t, path, text)
	c, err := config.Load(path, config.WithEnviron(nil))
	require.NoError(t, err)
	return path, c
}

func TestWatch_errorsAreToldOnceAndKeepTheConfig(t *testing.T) {
	t.Parallel()
	path, c := newFile(t, draining(1))
	w := newWatched(t, path, c)

	replace(t, path, draining(2))
	w.wantDrain(2 * time.Second)
	good, err := config.Load(path, config.WithEnviron(nil))
	require.NoError(t, err)

	replace(t, path, []byte("drain: 3\n"))
	bad := w.next()
	require.EqualError(t, bad.err, path+":1: drain: 3: has no unit: write ms, s, m or h behind the number")
	require.Equal(t, good, bad.config)

	replace(t, path, []byte("drain: 3 # the same error\n"))
	require.NoError(t, os.Remove(path))
	gone := w.next()
	require.ErrorIs(t, gone.err, os.ErrNotExist)
	require.Equal(t, good, gone.config)

	replace(t, path, draining(2)) // as it was: the way back is told
	w.wantDrain(2 * time.Second)
}

// replace is how editors save a file, and how it never is half there.
func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	write(t, path+"~", text)
	require.NoError(t, os.Rename(path+"~", path))
}

// replaced replaces a file several times. Without events that would take as many
// looks at the file anyway, ten seconds each.
func (w *watched) replaced(path string, drain int) {
	w.t.Helper()
	start := time.Now()
	for i := range 5 {
		replace(w.t, path, draining(drain+i))
		w.wantDrain(time.Duration(drain+i) * time.Second)
	}
	require.Less(w.t, time.Since(start), 30*time.Second)
}

func TestWatch_fileIsReplaced(t *testing.T) {
	t.Parallel()
	path, c := newFile(t, draining(1))
	w := newWatched(t, path, c)
	w.replaced(path, 10)
	replace(t, path, []byte("# says the same\ndrain: 14s\n"))
	replace(t, path+".other", draining(1))
	require.NoError(t, os.Rename(path, path+".old")) // as vim does it
	replace(t, path, draining(20))
	w.until(20 * time.Second)
}

func TestWatch_fileIsWrittenInPlace(t *testing.T) {
	t.Parallel()
	path, c := newFile(t, draining(1))
	w := newWatched(t, path, c)
	write(t, path, draining(2))
	w.until(2 * time.Second)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("namespace: shop\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, "shop", w.next().config.Namespace)
}

// Kubernetes swaps a link to a directory; the file and its own link stay.
func TestWatch_kubernetesSwapsItsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	swap := func(version string, text []byte) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "locks.yaml"), text)
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	swap("..1", draining(1))
	path := filepath.Join(dir, "locks.yaml")
	require.NoError(t, os.Symlink("..data/locks.yaml", path))
	c, err := config.Load(path, config.WithEnviron(nil))
	require.NoError(t, err)
	w := newWatched(t, path, c)
	for i := 2; i < 6; i++ {
		swap(fmt.Sprintf("..%d", i), draining(i))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i-1))))
		w.wantDrain(time.Duration(i) * time.Second)
	}
}

// The name is a link, and what it leads to is replaced.
func TestWatch_behindALink(t *testing.T) {
	t.Parallel()
	target, c := newFile(t, draining(1))
	path := filepath.Join(t.TempDir(), "link.yaml")
	require.NoError(t, os.Symlink(target, path))
	w := newWatched(t, path, c)
	replace(t, target, draining(4))
	w.wantDrain(4 * time.Second)
	other, _ := newFile(t, draining(2))
	require.NoError(t, os.Symlink(other, path+"~"))
	require.NoError(t, os.Rename(path+"~", path))
	w.wantDrain(2 * time.Second)
	w.replaced(other, 10)
}

func TestWatch_whatHappenedBeforeItIsToldToo(t *testing.T) {
	t.Parallel()
	path, c := newFile(t, draining(1))
	replace(t, path, draining(2))
	newWatched(t, path, c).wantDrain(2 * time.Second)
}

func TestWatch_noDirectory(t *testing.T) {
	t.Parallel()
	err := config.Watch(t.Context(), filepath.Join(t.TempDir(), "none", "locks.yaml"), config.Default(), func(config.Config, error) {
		t.Error("told")
	})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWatch_endedBefore(t *testing.T) {
	t.Parallel()
	path, _ := newFile(t, draining(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	require.NoError(t, config.Watch(ctx, path, config.Default(), func(config.Config, error) { t.Error("told") }))
}
