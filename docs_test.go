// SPDX-License-Identifier: Apache-2.0

package tierlock_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faultIDs are the rows that docs/faults.md must have. A row is never dropped:
// one that turned out to be impossible says why.
var faultIDs = strings.Fields(`
	A1 A2 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14 A15 A16 A17 A19
	B1 B2 B4 B5 B6 B7 B8 B9
	C1 C2 C3 C5 C6 C7 C9 C10 C11 C12
	D1 D2 D4 D5 D6 D7 D8 D9
	E1 E2 E3 E4 E6 E7 E8 E9 E10 E11 E12 E13
	F1 F2 F3 F4 F5 F6 F7
	G1 G2 G3 G5 G6 G8 G9
	H1 H2 H3 H4 H5
	I2 I3
	J1 J2 J3 J4 J5 J7 J8 J9 J10 J11 J12 J13 J14 J16 J17
	K1 K2 K3 K4 K5 K6 K7 K8 K10 K11
	L1 L2 L3 L4 L5 L6 L7 L8 L9
	M1 M2 M3 M4 M5
	N2 N3 N4
`)

var (
	faultRow = regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|(.*)\|$`)
	// reason stands where a row has no test, and beside tests of a part of it.
	reason = regexp.MustCompile(`(cannot happen|later): \S.{10,}`)
	// namedTests is a package followed by tests or sub-tests in it.
	namedTests = regexp.MustCompile("`([a-z]+)`: (`[^`]+`(?:, `[^`]+`)*)")
	quoted     = regexp.MustCompile("`([^`]+)`")
	rowInName  = regexp.MustCompile(`_([A-Z]\d+)`)
)

func TestFaults_everyRowHasATestOrAReason(t *testing.T) {
	t.Parallel()
	tests := findTests(t)
	seen := make(map[string]bool)
	listed := make(map[string]bool) // row and test
	for _, m := range faultRow.FindAllStringSubmatch(read(t, "docs/faults.md"), -1) {
		id, cells := m[1], strings.Split(m[2], "|")
		if seen[id] {
			t.Errorf("%s stands there twice", id)
		}
		seen[id] = true
		if !slices.Contains(faultIDs, id) {
			t.Errorf("%s is not in the list of rows", id)
		}
		if len(cells) != 3 {
			t.Errorf("%s has %d cells after its id, want report, what happened, test or reason", id, len(cells))
			continue
		}
		report, happened, answer := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		if !strings.Contains(report, "https://") && !strings.HasPrefix(report, "none (") {
			t.Errorf("%s has no public address, and does not say why: %q", id, report)
		}
		if happened == "" {
			t.Errorf("%s does not say what happened", id)
		}
		named := tests.namedIn(t, id, answer)
		if len(named) == 0 && !reason.MatchString(answer) {
			t.Errorf("%s has neither a test nor a reason: %q", id, answer)
		}
		for _, name := range named {
			listed[id+" "+name] = true
		}
	}
	for _, id := range faultIDs {
		if !seen[id] {
			t.Errorf("row %s is missing", id)
		}
	}
	for pkg, names := range tests {
		for name := range names {
			for _, m := range rowInName.FindAllStringSubmatch(name, -1) {
				if seen[m[1]] && !listed[m[1]+" "+pkg+": "+name] {
					t.Logf("%s could list `%s`: `%s`", m[1], pkg, name)
				}
			}
		}
	}
}

func TestDocs_namedTestsExist(t *testing.T) {
	t.Parallel()
	tests := findTests(t)
	for _, file := range documents(t) {
		tests.namedIn(t, file, read(t, file))
	}
}

// testNames are the tests of a package, by its directory's name: functions, and
// the string literals that may be names of sub-tests.
type testNames map[string]map[string]bool

func findTests(t *testing.T) testNames {
	t.Helper()
	found := make(testNames)
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		file = filepath.ToSlash(file)
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(file, "_test.go") && (path.Dir(file) != "tier/tiertest" || path.Ext(file) != ".go"):
			return nil
		}
		pkg := path.Base(path.Dir(file))
		if pkg == "." {
			pkg = "tierlock"
		}
		if found[pkg] == nil {
			found[pkg] = make(map[string]bool)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && isTest(n.Name.Name) {
					found[pkg][n.Name.Name] = true
				}
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && !isTest(s) && !strings.Contains(s, "\n") {
					found[pkg][strings.ReplaceAll(s, " ", "_")] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example")
}

// namedIn returns the tests that a text names, as "package: test", and fails
// the test for those that are not there.
func (n testNames) namedIn(t *testing.T, where, text string) []string {
	t.Helper()
	var named []string
	for _, m := range namedTests.FindAllStringSubmatch(text, -1) {
		pkg := m[1]
		if n[pkg] == nil {
			t.Errorf("%s names a test of package %s, which has none", where, pkg)
			continue
		}
		for _, q := range quoted.FindAllStringSubmatch(m[2], -1) {
			for part := range strings.SplitSeq(q[1], "/") {
				if !n[pkg][part] {
					t.Errorf("%s names %s: %s, and there is no %s", where, pkg, q[1], part)
				}
				named = append(named, pkg+": "+part)
			}
		}
	}
	return named
}

func TestReadme_codeIsAnExample(t *testing.T) {
	t.Parallel()
	examples := exampleBodies(t)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md shows no program")
	}
	for _, block := range blocks {
		code := strings.TrimSpace(block[1])
		if !slices.Contains(examples, code) {
			t.Errorf("this block is not the body of an Example of example_test.go:\n%s", code)
		}
		if n := strings.Count(code, "\n") + 1; n > 15 {
			t.Errorf("a block of %d lines: at most 15 are a start", n)
		}
	}
}

// exampleBodies are the bodies of the Examples as a reader sees them.
func exampleBodies(t *testing.T) []string {
	t.Helper()
	const file = "example_test.go"
	source := read(t, file)
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Example") {
			continue
		}
		body := source[set.Position(f.Body.Lbrace).Offset+1 : set.Position(f.Body.Rbrace).Offset]
		body, _, _ = strings.Cut(body, "\t// Output:")
		bodies = append(bodies, strings.TrimSpace(strings.ReplaceAll(body, "\n\t", "\n")))
	}
	return bodies
}

func TestDocs_length(t *testing.T) {
	t.Parallel()
	for file, most := range map[string]int{"README.md": 150, "CONTRIBUTING.md": 60} {
		if n := strings.Count(read(t, file), "\n"); n > most {
			t.Errorf("%s has %d lines, more than %d", file, n, most)
		}
	}
}

func TestDocs_makeTargetsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	mentioned := regexp.MustCompile(`\bmake ([a-z]+)`)
	for _, file := range documents(t) {
		text := read(t, file)
		if file == "README.md" && (!strings.Contains(text, "make demo") || !strings.Contains(text, "make test")) {
			t.Error("README.md does not tell its two commands, make demo and make test")
		}
		// Prose makes things too: only code counts.
		for _, code := range codeIn(text) {
			for _, m := range mentioned.FindAllStringSubmatch(code, -1) {
				if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
					t.Errorf("%s tells to run make %s, which the Makefile does not have", file, m[1])
				}
			}
		}
	}
}

// codeIn returns the spans and blocks of code of a text.
func codeIn(text string) []string {
	return regexp.MustCompile("(?s)```.*?```|`[^`\n]+`|(?:\n {4}[^\n]*)+").FindAllString(text, -1)
}

func TestDocs_localLinksResolve(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, file := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, file), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := file
			if target != "" {
				to = path.Join(path.Dir(file), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, to)), anchor) {
				t.Errorf("%s links to %s, and there is no such heading", file, m[1])
			}
		}
	}
}

// anchors are the headings of a text as links name them.
func anchors(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		plain := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			all = append(all, filepath.ToSlash(file))
		}
	}
	if len(all) == 0 {
		t.Fatal("no documents found")
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(fmt.Errorf("the module's root has no %s: %w", file, err))
	}
	return string(content)
}
