// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"strings"
)

// HiddenState finds what runs or changes behind the reader's back: init
// functions, values carried in a context, and package-level variables that
// may change. Variables of tests are not looked at.
//
// A variable passes when nothing in the package assigns to it and it is a guard
// (var _ I = …), an error sentinel, a compiled regular expression, a reflected
// type, a metric's description, an embedded file, a sync.Pool (which holds
// nothing that can be told from new), or a table (an unexported composite
// literal of array, slice or map whose address is not taken); or when allow
// names it as "dir.name".
func HiddenState(m *Module, allow Allow) []Violation {
	var vs []Violation
	used := map[string]bool{}
	for _, p := range m.Packages {
		assigned, addressed := writes(p.Code())
		for _, f := range p.Files {
			vs = append(vs, initsAndValues(m, f)...)
			if f.Test {
				continue
			}
			for _, d := range f.AST.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.VAR {
					continue
				}
				for _, s := range g.Specs {
					v := s.(*ast.ValueSpec)
					if embedded(g, v) {
						continue
					}
					for i, name := range v.Names {
						if !constant(name.Name, v, i, assigned, addressed) && !allow.has(p.Dir+"."+name.Name, used) {
							vs = append(vs, Violation{m.at(name), "variable " + name.Name + " is package-level state"})
						}
					}
				}
			}
		}
	}
	vs = append(vs, allow.unused(m, "package-level state", used)...)
	sortViolations(vs)
	return vs
}

func initsAndValues(m *Module, f *File) []Violation {
	var vs []Violation
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				vs = append(vs, Violation{m.at(n), "init runs at import; make it a function that somebody calls"})
			}
		case *ast.SelectorExpr:
			if selector(n) == "context.WithValue" {
				vs = append(vs, Violation{m.at(n), "context.WithValue hides an argument; pass it"})
			}
		}
		return true
	})
	return vs
}

// constant says whether the i-th variable of v stays what it is.
func constant(name string, v *ast.ValueSpec, i int, assigned, addressed map[string]bool) bool {
	if name == "_" {
		return true
	}
	if assigned[name] {
		return false
	}
	if i >= len(v.Values) {
		return isPool(v.Type)
	}
	switch x := v.Values[i].(type) {
	case *ast.CallExpr:
		switch callee(x.Fun) {
		case "errors.New", "fmt.Errorf":
			return strings.HasPrefix(name, "err") || strings.HasPrefix(name, "Err")
		case "regexp.MustCompile", "reflect.TypeFor", "reflect.TypeOf", "prometheus.NewDesc":
			return true
		}
	case *ast.UnaryExpr:
		lit, ok := x.X.(*ast.CompositeLit)
		return ok && isPool(lit.Type)
	case *ast.CompositeLit:
		switch x.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			return !ast.IsExported(name) && !addressed[name]
		}
		return isPool(x.Type)
	}
	return false
}

// isPool says whether the type is sync.Pool.
func isPool(t ast.Expr) bool { return t != nil && callee(t) == "sync.Pool" }

// callee is pkg.Name, also of a generic function with its types.
func callee(e ast.Expr) string {
	if x, ok := e.(*ast.IndexExpr); ok {
		e = x.X
	}
	if sel, ok := e.(*ast.SelectorExpr); ok {
		return selector(sel)
	}
	return ""
}

func embedded(g *ast.GenDecl, v *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{g.Doc, v.Doc} {
		if doc == nil {
			continue
		}
		for _, c := range doc.List {
			if strings.HasPrefix(c.Text, "//go:embed ") {
				return true
			}
		}
	}
	return false
}

// writes are the names that some statement of the files assigns to, changes in
// part or deletes from, and those whose address it takes. It does not know
// scopes, so a local variable of the same name counts too: rename one of them.
func writes(files []*File) (assigned, addressed map[string]bool) {
	assigned, addressed = map[string]bool{}, map[string]bool{}
	mark := func(w map[string]bool, e ast.Expr) {
		if id := rootIdent(e); id != nil {
			w[id.Name] = true
		}
	}
	for _, f := range files {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok == token.DEFINE {
					return true
				}
				for _, e := range n.Lhs {
					mark(assigned, e)
				}
			case *ast.IncDecStmt:
				mark(assigned, n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					mark(addressed, n.X)
				}
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (id.Name == "delete" || id.Name == "clear") {
					mark(assigned, n.Args[0])
				}
			}
			return true
		})
	}
	return assigned, addressed
}

// rootIdent is the variable at the root of x, x[i], x.f, *x.
func rootIdent(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		default:
			return nil
		}
	}
}

func selector(s *ast.SelectorExpr) string {
	if id, ok := s.X.(*ast.Ident); ok {
		return id.Name + "." + s.Sel.Name
	}
	return ""
}
