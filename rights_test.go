// SPDX-License-Identifier: Apache-2.0

package tierlock_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// adminCalls are the only calls that an admin's DSN may be handed to, beside
// sql.Open: tables, accounts and faults of a test are an admin's, the lock never
// is. A file that needs another is listed here with it.
var adminCalls = map[string][]string{
	"cmd/demo/demo_test.go":       {"openShop"}, // makes the shop's tables, and the lock's
	"cmd/demo/stage.go":           {"openShop"},
	"deploy/mysql/server_test.go": {"open", "mysql.ParseDSN"}, // its open is sql.Open; for the accounts under test
	"idempotency/tenure_test.go":  {"s.pool"},                 // a caller's transaction on a wrong server
}

// adminKeepers may keep an admin's DSN.
var adminKeepers = []string{"cmd/demo/servers.go"}

// Every test runs the library as a user with the rights of
// deploy/mysql/grants.sql, which internal/stack makes and deploy/mysql compares;
// and no test hands the library anything of an admin's.
func TestRights_noAuthorityForAnAdmin(t *testing.T) {
	t.Parallel()
	uses := 0
	listed := make(map[string]bool)
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		file = filepath.ToSlash(file)
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case path.Ext(file) != ".go" || strings.HasPrefix(file, "internal/stack/"):
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		n, problems := adminUses(set, file, parsed)
		uses += n
		listed[file] = n > 0
		for _, problem := range problems {
			t.Error(problem)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if uses < 10 {
		t.Errorf("found %d uses of an admin's DSN: the test looks for the wrong name", uses)
	}
	for file := range adminCalls {
		if !listed[file] {
			t.Errorf("%s is listed, and has no admin's DSN", file)
		}
	}
}

// What the test above has to find.
func TestRights_found(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`sql.Open("mysql", d.AdminDSN())`:                          0,
		`sql.Open("mysql", strings.Replace(d.AdminDSN(), a, b))`:   0,
		`mysqlauth.Open(d.DSN())`:                                  0,
		`mysqlauth.EnsureSchema(ctx, s.Admin)`:                     0,
		`mysqlauth.Open(d.AdminDSN())`:                             1,
		`mysqlauth.OpenPool(d.AdminDSN() + "?autocommit=0")`:       1,
		`dsn := d.AdminDSN()`:                                      1,
		`use(node{dsn: d.AdminDSN()})`:                             1,
		`config.WithEnviron("TIERLOCK_MYSQL_DSN=" + d.AdminDSN())`: 1,
		`get := d.AdminDSN`:                                        1,
		`mysqlauth.New(s.Admin)`:                                   1,
		`idempotency.New(s.Admin)`:                                 1,
		`mysqlauth.New(admin, mysqlauth.WithTimeout(x))`:           1,
	} {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, "x.go", "package x\nfunc f() { "+source+" }", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if _, problems := adminUses(set, "x.go", parsed); len(problems) != want {
			t.Errorf("%s: %q, want %d", source, problems, want)
		}
	}
}

// adminUses counts where a file names an admin's DSN, and tells where it could
// reach the library.
func adminUses(set *token.FileSet, file string, parsed *ast.File) (uses int, problems []string) {
	problem := func(n ast.Node, what string) {
		problems = append(problems, fmt.Sprintf("%s: %s", set.Position(n.Pos()), what))
	}
	var within []ast.Node
	ast.Inspect(parsed, func(n ast.Node) bool {
		if n == nil {
			within = within[:len(within)-1]
			return true
		}
		within = append(within, n)
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if n.Sel.Name != "AdminDSN" && n.Sel.Name != "adminDSN" || slices.Contains(adminKeepers, file) {
				break
			}
			uses++
			if !slices.ContainsFunc(within, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				return ok && (called(call) == "sql.Open" || slices.Contains(adminCalls[file], called(call)))
			}) {
				problem(n, "an admin's DSN goes where the library could get it: hand it to sql.Open, or list the call in adminCalls")
			}
		case *ast.CallExpr:
			name := called(n)
			if name == "mysqlauth.New" || name == "idempotency.New" || name == "New" && strings.HasPrefix(file, "mysqlauth/") {
				if slices.ContainsFunc(n.Args, isAdminPool) {
					problem(n, "the library runs on an admin's pool")
				}
			}
		}
		return true
	})
	return uses, problems
}

// isAdminPool reports whether an expression is a pool that is called an admin's.
func isAdminPool(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.EqualFold(e.Name, "admin")
	case *ast.SelectorExpr:
		return strings.EqualFold(e.Sel.Name, "admin")
	}
	return false
}

// called is the function of a call as it is written there, where that is a name
// or one behind a name.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}
