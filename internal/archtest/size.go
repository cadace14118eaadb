// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
)

// Budget bounds how big things may grow. Exceptions are keyed by file name
// (Files), "dir.Func" or "dir.Type.Method" (Functions), "dir.Type" (Structs,
// Interfaces), and folder (Packages).
type Budget struct {
	FileLines        int
	FunctionLines    int
	StructFields     int
	InterfaceMethods int
	PackageLines     int // the least: a smaller package is not worth its name

	Files, Functions, Structs, Interfaces, Packages Allow
}

// Sizes checks a budget. Tests count for files and functions only.
func Sizes(m *Module, b Budget) []Violation {
	var vs []Violation
	used := map[string]bool{}
	over := func(a Allow, key, where string, n, most int, unit string) {
		if n > most && !a.has(key, used) {
			vs = append(vs, Violation{where, fmt.Sprintf("%s has %d %s, at most %d", key, n, unit, most)})
		}
	}
	for _, p := range m.Packages {
		lines := 0
		for _, f := range p.Files {
			if !f.Test {
				lines += f.Lines
			}
			over(b.Files, f.Name, f.Name, f.Lines, b.FileLines, "lines")
			for _, d := range f.AST.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					n := m.Fset.Position(fn.End()).Line - m.Fset.Position(fn.Pos()).Line + 1
					over(b.Functions, p.Dir+"."+funcName(fn), m.at(fn), n, b.FunctionLines, "lines")
				}
			}
			if f.Test {
				continue
			}
			for _, spec := range types(f) {
				key := p.Dir + "." + spec.Name.Name
				switch t := spec.Type.(type) {
				case *ast.StructType:
					over(b.Structs, key, m.at(spec), t.Fields.NumFields(), b.StructFields, "fields")
				case *ast.InterfaceType:
					over(b.Interfaces, key, m.at(spec), t.Methods.NumFields(), b.InterfaceMethods, "methods")
				}
			}
		}
		if lines > 0 && lines < b.PackageLines && !b.Packages.has(p.Dir, used) {
			vs = append(vs, Violation{p.Dir, fmt.Sprintf("has %d lines without tests, at least %d: merge it or say why it stands alone", lines, b.PackageLines)})
		}
	}
	for _, a := range []Allow{b.Files, b.Functions, b.Structs, b.Interfaces, b.Packages} {
		vs = append(vs, a.unused(m, "size budget", used)...)
	}
	sortViolations(vs)
	return vs
}

// types are the type declarations at the top level of a file.
func types(f *File) []*ast.TypeSpec {
	var specs []*ast.TypeSpec
	for _, d := range f.AST.Decls {
		if g, ok := d.(*ast.GenDecl); ok {
			for _, s := range g.Specs {
				if t, ok := s.(*ast.TypeSpec); ok {
					specs = append(specs, t)
				}
			}
		}
	}
	return specs
}

// funcName is Name or Receiver.Name.
func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
			continue
		case *ast.IndexExpr:
			t = x.X
			continue
		case *ast.IndexListExpr:
			t = x.X
			continue
		case *ast.Ident:
			return x.Name + "." + fn.Name.Name
		}
		return fn.Name.Name
	}
}
