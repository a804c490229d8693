// SPDX-License-Identifier: Apache-2.0

package compose_test

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// instruction is a line of the Dockerfile, which has no continued ones.
type instruction struct {
	verb string
	args string
}

func instructions(t *testing.T) []instruction {
	t.Helper()
	var all []instruction
	for line := range strings.Lines(read(t, "Dockerfile")) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasSuffix(line, `\`) {
			t.Fatalf("a continued line is more than this test reads: %s", line)
		}
		verb, args, _ := strings.Cut(line, " ")
		all = append(all, instruction{verb: verb, args: args})
	}
	return all
}

// last is what the last instruction of a verb says.
func last(all []instruction, verb string) string {
	for _, i := range slices.Backward(all) {
		if i.verb == verb {
			return i.args
		}
	}
	return ""
}

func TestDockerfile_smallAndNotRoot(t *testing.T) {
	t.Parallel()
	all := instructions(t)
	var bases []string
	final := 0 // where the last stage begins
	for n, i := range all {
		if i.verb == "FROM" {
			bases, final = append(bases, i.args), n
		}
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	if want := []string{"golang:" + goVersion + " AS build", "scratch"}; !slices.Equal(bases, want) {
		t.Errorf("stages %q, want %q", bases, want)
	}
	user, numeric := last(all[final:], "USER"), regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`)
	if !numeric.MatchString(user) {
		t.Errorf("USER %q: scratch knows no names, and root it must not be", user)
	}
	for _, i := range all[final:] {
		if !slices.Contains([]string{"FROM", "COPY", "USER", "ENTRYPOINT"}, i.verb) {
			t.Errorf("the last stage has %s %s", i.verb, i.args)
		}
		if i.verb == "COPY" && !strings.HasPrefix(i.args, "--from=build ") {
			t.Errorf("the last stage has %s, not from the build", i.args)
		}
	}
	if entry := last(all, "ENTRYPOINT"); entry != `["/demo"]` {
		t.Errorf("ENTRYPOINT %s", entry)
	}
}

// TestDockerfile_buildsWhatIsThere builds as the Dockerfile says, from nothing
// but what .dockerignore lets through, and starts the program with the flags
// that the compose file gives it.
func TestDockerfile_buildsWhatIsThere(t *testing.T) {
	t.Parallel()
	src, out := buildContext(t), t.TempDir()
	for _, i := range instructions(t) {
		if i.verb != "COPY" || strings.HasPrefix(i.args, "--from=build ") {
			continue
		}
		sources := strings.Fields(i.args)
		for _, source := range sources[:len(sources)-1] {
			if _, err := os.Stat(filepath.Join(src, source)); err != nil {
				t.Errorf("COPY %s: %v", i.args, err)
			}
		}
	}

	build := last(instructions(t), "RUN")
	if !strings.HasPrefix(build, "CGO_ENABLED=0 go build ") || !strings.Contains(build, " -o /out/demo ") {
		t.Fatalf("the last RUN does not build the demo: %s", build)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(build, "/out/", out+"/"))
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, text)
	}
	demo := filepath.Join(out, "demo")
	program, err := elf.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close() //nolint:errcheck // it was only read
	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the program is not static: scratch has no loader for it")
	}

	service := load(t).Services["demo"]
	if len(service.Entrypoint) == 0 || service.Entrypoint[0] != "/demo" {
		t.Fatalf("the compose file starts %q", service.Entrypoint)
	}
	args := slices.Concat(service.Entrypoint[1:], service.Command)
	for i, arg := range args {
		// Nobody listens there.
		args[i] = strings.NewReplacer("redis:6379", "127.0.0.1:1", "mysql:3306", "127.0.0.1:1").Replace(arg)
	}
	var said bytes.Buffer
	cmd = exec.CommandContext(t.Context(), demo, args...)
	cmd.Env = []string{} // a container has none of ours
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "open the shop's database") || !strings.Contains(said.String(), "connection refused") {
		t.Errorf("demo %q: %v; want it to get as far as the database\n%s", args, err, said.Bytes())
	}
}

// buildContext is a copy of what .dockerignore lets through.
func buildContext(t *testing.T) string {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == "." {
			return err
		}
		if skip, err := ignored.MatchesOrParentMatches(name); err != nil || skip {
			if skip && d.IsDir() && !ignored.Exclusions() {
				return fs.SkipDir
			}
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(dir, name), 0o700)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{".git", ".ci", "bin", "deploy", "docs_test.go"} {
		if _, err := os.Stat(filepath.Join(dir, secret)); err == nil {
			t.Errorf(".dockerignore lets %s through", secret)
		}
	}
	return dir
}
