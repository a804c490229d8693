// SPDX-License-Identifier: Apache-2.0

package tierlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// opensAuthority are the ways to get at MySQL as the library does; open is the one
// of mysqlauth's own tests.
var opensAuthority = []string{"Open", "OpenPool", "openPool", "open"}

// Every test runs the library as the user of deploy/mysql/grants.sql: what a
// test's admin is for, tables and faults, goes through a pool of database/sql. No
// file hands an admin's DSN to a driver, or stores one where it could be handed on.
func TestRights_noAuthorityForAnAdmin(t *testing.T) {
	t.Parallel()
	seen := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(file) != ".go" || strings.HasPrefix(filepath.ToSlash(file), "internal/stack/"):
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !slices.ContainsFunc(call.Args, namesAdmin) {
				return true
			}
			seen++
			if pkg, name := called(call); slices.Contains(opensAuthority, name) && pkg != "sql" && (name != "open" || strings.HasPrefix(filepath.ToSlash(file), "mysqlauth/")) {
				t.Errorf("%s: the library runs as an admin", set.Position(call.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 3 {
		t.Errorf("found %d uses of an admin's DSN: the test looks for the wrong name", seen)
	}
}

// namesAdmin reports whether an expression asks for an admin's DSN.
func namesAdmin(e ast.Expr) (names bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "AdminDSN" || s.Sel.Name == "adminDSN") {
			names = true
		}
		return true
	})
	return names
}

// called is the package or receiver, where it is a name, and the function of a call.
func called(call *ast.CallExpr) (pkg, name string) {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return "", f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			pkg = x.Name
		}
		return pkg, f.Sel.Name
	}
	return "", ""
}
