// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package archtest holds the rules of the house as code: which folder may
// import which, what no file may import, size budgets, names, package
// comments, and the absence of hidden state.
//
// It reads source text alone (go/parser, no type checker), so that it costs a
// second. What a rule cannot see in the text it leaves to review. Start
// reading at [Load]; the rules' tables for this module are in
// archtest_test.go, each exception with its reason.
//
// Always true: a rule is a function from a [Module] to [Violation] values, and
// has a test that feeds it source text which breaks it.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Module is the parsed source of one Go module.
type Module struct {
	Path     string // module path of go.mod
	Packages []*Package
	Fset     *token.FileSet
}

// Package is one folder with Go files.
type Package struct {
	Dir   string // slash-separated, relative to the module; "." for the root
	Name  string // of its files that are not external tests
	Files []*File
}

// File is one Go file.
type File struct {
	Name   string // relative to the module
	Test   bool   // _test.go
	Lines  int
	Source string
	AST    *ast.File
}

// Violation is one broken rule at one place.
type Violation struct {
	Where string // file:line, or a folder
	What  string
}

func (v Violation) String() string { return v.Where + ": " + v.What }

// Load parses every Go file below root, which holds go.mod. Nested modules,
// testdata, and folders whose name begins with a dot or underscore are left out.
func Load(root string) (*Module, error) {
	files := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(root, p, d.Name())
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)] = string(text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mod)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
			return Parse(strings.TrimSpace(name), files)
		}
	}
	return nil, fmt.Errorf("archtest: %s/go.mod has no module line", root)
}

func skipDir(root, p, name string) error {
	if p == root {
		return nil
	}
	if name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "node_modules" {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// Parse builds a Module from texts by file name.
func Parse(modulePath string, files map[string]string) (*Module, error) {
	m := &Module{Path: modulePath, Fset: token.NewFileSet()}
	dirs := map[string]*Package{}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		tree, err := parser.ParseFile(m.Fset, name, files[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("archtest: %w", err)
		}
		dir := path.Dir(name)
		p := dirs[dir]
		if p == nil {
			p = &Package{Dir: dir}
			dirs[dir] = p
			m.Packages = append(m.Packages, p)
		}
		p.Files = append(p.Files, &File{
			Name:   name,
			Test:   strings.HasSuffix(name, "_test.go"),
			Lines:  strings.Count(files[name], "\n"),
			Source: files[name],
			AST:    tree,
		})
		if n := tree.Name.Name; !strings.HasSuffix(n, "_test") {
			p.Name = n
		}
	}
	return m, nil
}

// Code is the package's files without its tests.
func (p *Package) Code() []*File {
	return slices.DeleteFunc(slices.Clone(p.Files), func(f *File) bool { return f.Test })
}

// Imports are the import paths of a file.
func (f *File) Imports() []string {
	paths := make([]string, 0, len(f.AST.Imports))
	for _, spec := range f.AST.Imports {
		if s, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, s)
		}
	}
	return paths
}

// each calls yield for every file.
func (m *Module) each(yield func(*Package, *File)) {
	for _, p := range m.Packages {
		for _, f := range p.Files {
			yield(p, f)
		}
	}
}

// at is the place of a node.
func (m *Module) at(n ast.Node) string {
	pos := m.Fset.Position(n.Pos())
	return pos.Filename + ":" + strconv.Itoa(pos.Line)
}

// Allow is a list of exceptions: key to reason. An exception without a reason
// is none, and one that nothing needs any more is a violation itself.
type Allow map[string]string

// has says whether key is excepted, and notes in used that it was asked for.
func (a Allow) has(key string, used map[string]bool) bool {
	if strings.TrimSpace(a[key]) == "" {
		return false
	}
	used[key] = true
	return true
}

// unused reports the exceptions of existing packages that nothing needed: a
// list of exceptions must shrink when the code does.
func (a Allow) unused(m *Module, rule string, used map[string]bool) []Violation {
	var vs []Violation
	for key := range a {
		exists := slices.ContainsFunc(m.Packages, func(p *Package) bool {
			return key == p.Dir || strings.HasPrefix(key, p.Dir+".") || strings.HasPrefix(key, p.Dir+"/")
		})
		if exists && !used[key] {
			vs = append(vs, Violation{rule, "the exception for " + key + " is not needed or gives no reason; take it out"})
		}
	}
	sortViolations(vs)
	return vs
}

func sortViolations(vs []Violation) {
	sort.Slice(vs, func(i, j int) bool { return vs[i].String() < vs[j].String() })
}
